//! What is proposed: anything on any znode, the locks' own znodes included, from sessions that hold and wait.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::frame::DEFAULT_MAX_BYTES;
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Mode, Owner};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{CreateMode, FencingToken, NodeId, SessionId, Version};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command, Origin, Proposal, Stamp};
use rowlock_state::outcome::{Applied, Attached};
use rowlock_state::{LockView, Machine};

use crate::histories::chance::Chance;

const LOCKS: [&str; 4] = ["/l", "/a/b", "/a", "/q"];
const SESSIONS: usize = 4;
const PASSWORD: [u8; 16] = [7; 16];
/// Bytes of the largest names and data: a request with one of them fills a frame, but for what else it says.
const LARGEST: usize = DEFAULT_MAX_BYTES - 256;
/// Operations of a write whose outcome takes about half of what may be kept for a session.
const HOARD: usize = 4_000;
/// Numbered writes that a session's client may not know the outcome of.
const UNKNOWN_MAX: u64 = 6;

/// A session as its client knows it.
#[derive(Clone, Debug)]
struct Session {
    id: SessionId,
    attachment: Attachment,
    /// Its latest numbered write.
    tag: u64,
    latest: Vec<(u64, Command)>,
}

pub struct Generator {
    sessions: Vec<Session>,
    time_ms: i64,
    attempts: u64,
    /// Nearly all share locks and have a lock-delay: one of them expires beside another who wants to be alone
    /// then.
    are_readers: bool,
    /// Clients acknowledge no outcome, and one asks for large ones until its session may keep no more.
    are_hoarders: bool,
    /// What long names begin with; empty in most histories.
    long: String,
    /// What long data are; none in most histories.
    large: Option<Bytes>,
}

#[derive(Clone, Debug)]
struct Place {
    lock: String,
    path: String,
    token: FencingToken,
    session: SessionId,
}

impl Generator {
    pub fn new(chance: &mut Chance) -> Self {
        let (long, large) = match chance.below(100) {
            0..5 => (100_000, 0),
            5 => (LARGEST, LARGEST),
            6 => (0, LARGEST),
            _ => (0, 0),
        };
        Generator {
            sessions: Vec::new(),
            time_ms: 1_000,
            attempts: 0,
            are_readers: chance.one_in(4),
            are_hoarders: chance.one_in(8),
            long: "n".repeat(long),
            large: (large > 0).then(|| vec![b'd'; large].into()),
        }
    }

    pub fn next(&mut self, chance: &mut Chance, state: &Machine) -> (Stamp, Proposal) {
        self.time_ms += chance.pick(&[0, 0, 1, 5, 200, 2_000, -500]);
        let stamp = Stamp { time_ms: self.time_ms, enforce_quota: chance.one_in(4), ..Stamp::default() };
        if self.sessions.len() < SESSIONS {
            let timeout_ms = chance.pick(&[500, 1_000, 4_000]);
            let open = Command::OpenSession { proof: Proof::of(&PASSWORD), timeout_ms };
            return (stamp, proposal(SessionId::NONE, Attachment(0), open));
        }
        let at = chance.below(SESSIONS);
        if chance.one_in(4) {
            return (stamp, self.of_the_cluster(chance, state, at));
        }
        // Who holds alone while a lock-delay runs may want more, and that moment is short.
        let is_alone = |lock: &LockView<'_>| lock.holder_count() == 1 && lock.waiter_count() == 0;
        let alone = places(state, |lock| lock.delayed_until_ms().is_some() && is_alone(lock));
        let wants_more = !alone.is_empty() && chance.one_in(2);
        let places = if wants_more { alone } else { places(state, |_| true) };
        let place = (!places.is_empty()).then(|| chance.pick(&places));
        // Mostly those act whose place it is.
        let owner =
            place.as_ref().and_then(|place| self.sessions.iter().position(|it| it.id == place.session));
        let at = owner.filter(|_| !chance.one_in(4)).unwrap_or(at);
        let mut command = match place {
            Some(place) if wants_more => self.convert(chance, &place),
            place => self.of_a_client(chance, place),
        };
        let may_be_tagged = !matches!(
            command,
            Command::Client(Request::CloseSession)
                | Command::Client(Request::Verify(_))
                | Command::Client(Request::Ask(_))
        );
        if self.are_hoarders && at == 0 && may_be_tagged && chance.one_in(4) {
            let check = Op::Check { path: "/".to_owned(), version: Version::ANY };
            command = Command::Client(Request::Multi(vec![check; HOARD]));
        }
        let are_hoarders = self.are_hoarders;
        let tagged = |chance: &mut Chance, id: u64, command| {
            let known = if are_hoarders { id } else { chance.pick(&[0, 1, 2, UNKNOWN_MAX]) };
            Command::Tagged { id, acked: id.saturating_sub(known), command: Box::new(command) }
        };
        let session = &mut self.sessions[at];
        if may_be_tagged && chance.one_in(3) {
            if !session.latest.is_empty() && chance.one_in(4) {
                // The reply was lost: the same once more, or something else under its number.
                let (id, again) = chance.pick(&session.latest);
                let sent = if chance.one_in(8) { command } else { again };
                command = tagged(chance, id, sent);
            } else {
                session.tag += 1;
                session.latest.push((session.tag, command.clone()));
                if session.latest.len() as u64 > UNKNOWN_MAX && !are_hoarders {
                    session.latest.remove(0);
                }
                command = tagged(chance, session.tag, command);
            }
        }
        let stale = u64::from(chance.one_in(30));
        (stamp, proposal(session.id, Attachment(session.attachment.0 - stale), command))
    }

    /// What an answer tells the sessions' clients.
    pub fn learn(&mut self, proposal: &Proposal, applied: &Applied) {
        match (&proposal.command, &applied.result) {
            (Command::OpenSession { .. }, Ok(_)) => {
                let Attached { session: id, attachment, .. } = applied.attached.expect("it opens");
                self.sessions.push(Session { id, attachment, tag: 0, latest: Vec::new() });
            }
            (Command::Reattach { .. }, Ok(_)) => {
                let Attached { session, attachment, .. } = applied.attached.expect("it is attached");
                let open = self.sessions.iter_mut().find(|open| open.id == session).unwrap();
                open.attachment = attachment;
            }
            (Command::Client(Request::CloseSession), Ok(_)) => {
                self.sessions.retain(|open| open.id != proposal.session)
            }
            (Command::ExpireSession { session, .. }, Ok(_)) => {
                self.sessions.retain(|open| open.id != *session)
            }
            _ => {}
        }
    }

    fn of_the_cluster(&mut self, chance: &mut Chance, state: &Machine, at: usize) -> Proposal {
        let session = self.sessions[at].clone();
        let now_ms = state.time_ms().max(self.time_ms);
        let due: Vec<&str> = state.locks_due(now_ms).collect();
        let idle: Vec<&str> = state.reap_due(now_ms, state.last_zxid()).collect();
        let command = match chance.below(8) {
            0 => Command::ExpireSession { session: session.id, attachment: session.attachment },
            1 => Command::ExpireSession { session: session.id, attachment: Attachment(0) },
            2 => return proposal(session.id, session.attachment, Command::Client(Request::CloseSession)),
            3 => {
                let timeout_ms = chance.pick(&[500, 1_000, 4_000, 9_000]);
                let proof = Proof::of(&PASSWORD);
                Command::Reattach { from: None, session: session.id, proof, timeout_ms }
            }
            4 | 5 if !due.is_empty() => Command::LockDue { lock: chance.pick(&due).to_owned() },
            6 if !idle.is_empty() => Command::Reap { path: chance.pick(&idle).to_owned() },
            7 => Command::Reap { path: chance.pick(&LOCKS).to_owned() },
            _ => Command::LockDue { lock: chance.pick(&LOCKS).to_owned() },
        };
        proposal(SessionId::NONE, Attachment(0), command)
    }

    fn of_a_client(&mut self, chance: &mut Chance, place: Option<Place>) -> Command {
        // Many meet at one.
        let lock = if chance.one_in(2) { LOCKS[0] } else { chance.pick(&LOCKS) }.to_owned();
        match (chance.below(21), place) {
            (0..=3, place) => {
                Command::Client(Request::Acquire([self.acquire(chance, lock, place.as_ref())].into()))
            }
            (4, place) => {
                let locks = &LOCKS[chance.below(LOCKS.len())..];
                let acquire = |lock: &&str| self.acquire(chance, (*lock).to_owned(), place.as_ref());
                let mut all: Vec<Acquire> = locks.iter().map(acquire).collect();
                let owner = all[0].owner;
                // A request in the names of several owners is refused.
                all.iter_mut().filter(|_| !chance.one_in(12)).for_each(|one| one.owner = owner);
                Command::Client(Request::Acquire(all.into()))
            }
            (5 | 6, Some(place)) => Command::Client(Request::Release([claim(chance, &place)].into())),
            (7, Some(place)) => Command::Client(Request::Delete { path: place.path, version: Version::ANY }),
            (8 | 9, Some(place)) => self.convert(chance, &place),
            (10, Some(place)) if !chance.one_in(4) => {
                Command::Client(Request::ForceRelease(claim(chance, &place)))
            }
            // Of a lock-delay.
            (10, _) => {
                Command::Client(Request::ForceRelease(Claim { path: lock.into(), token: FencingToken(0) }))
            }
            (11, Some(place)) => {
                let name = &place.path[place.lock.len() + 1..];
                let prefix = name[..name.len() - 10].to_owned();
                Command::Client(Request::Abandon(vec![Attempt { lock: place.lock, prefix }]))
            }
            (12, Some(place)) => Command::Client(Request::Verify([claim(chance, &place)].into())),
            (13 | 14, _) => Command::Client(Request::Create2(self.plain(chance, &lock))),
            (15, _) => self.lock_znode(chance, lock),
            (16, _) => Command::Client(Request::Delete { path: lock, version: Version::ANY }),
            (17, Some(place)) if chance.one_in(4) => Command::Client(Request::SetData(SetData {
                path: place.path,
                data: self.data(chance),
                version: Version::ANY,
            })),
            (17, _) => Command::Client(Request::SetData(SetData {
                path: lock,
                data: self.data(chance),
                version: Version::ANY,
            })),
            (18, _) if chance.one_in(8) => Command::Client(Request::SetAcl(SetAcl {
                path: lock,
                acl: Some(some_acl(chance)),
                version: Version::ANY,
            })),
            (20, place) => {
                let (lock, within_ms) =
                    (place.map_or(lock, |place| place.lock), chance.pick(&[0, 1_000, 1_500, 5_000]));
                Command::Client(Request::Ask(Ask {
                    lock,
                    reason: "why".to_owned(),
                    by: "who".to_owned(),
                    within_ms,
                }))
            }
            (_, place) => {
                let ops = 1 + chance.below(5);
                Command::Client(Request::Multi((0..ops).map(|_| self.op(chance, place.as_ref())).collect()))
            }
        }
    }

    fn convert(&mut self, chance: &mut Chance, place: &Place) -> Command {
        self.attempts += 1;
        let prefix = format!("c{}-", self.attempts);
        let mode = chance.pick(&[Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Permits(1)]);
        Command::Client(Request::Convert { claim: claim(chance, place), mode, prefix })
    }

    /// Maybe for the work that is done under the place `above`.
    fn acquire(&mut self, chance: &mut Chance, lock: String, above: Option<&Place>) -> Acquire {
        let prefix = if chance.one_in(3) { self.long.clone() } else { String::new() };
        let under = above.map_or(Owner::Unnamed, |above| Owner::under(&above.path));
        let is_reader = self.are_readers && !chance.one_in(8);
        Acquire {
            lock: lock.into(),
            prefix: format!("{prefix}p{}-", chance.below(6)).into(),
            data: chance.pick(&[None, Some(Bytes::from_static(b"who")), self.large.clone()]),
            acl: Some(Acl::shared_open()),
            mode: if is_reader { Mode::Shared } else { mode(chance) },
            limit: chance.pick(&[0, 1, 2, 3]),
            wait: !chance.one_in(if is_reader { 2 } else { 4 }),
            owner: chance.pick(&[Owner::Unnamed, Owner::Session, Owner::Named(7), under]),
            max_hold_ms: chance.pick(&[0, 0, 500]),
            lock_delay_ms: chance.pick(if is_reader { &[3_000, 60_000] } else { &[0, 3_000, 60_000] }),
            min_hold_ms: chance.pick(&[0, 0, 2_000]),
            min_hold_lapses: chance.one_in(2),
        }
    }

    /// Of a lock's znode or of a place: the words about permits, and other things.
    fn data(&self, chance: &mut Chance) -> Option<Bytes> {
        let words =
            [None, Some("permits=1"), Some("permits=2"), Some("x"), Some("")].map(|it| it.map(Bytes::from));
        if chance.one_in(8) { self.large.clone() } else { chance.pick(&words) }
    }

    /// A place of a client that knows a recipe only.
    fn plain(&mut self, chance: &mut Chance, lock: &str) -> Create {
        let long = if chance.one_in(3) { self.long.clone() } else { String::new() };
        let name = chance.pick(&["x-", "x-lease-", "b-lease-", "x__READ__", "a__READ__", "lock-"]);
        let mode = chance.pick(&[
            CreateMode::EphemeralSequential,
            CreateMode::EphemeralSequential,
            CreateMode::EphemeralSequential,
            CreateMode::Ephemeral,
            CreateMode::PersistentSequential,
        ]);
        create(format!("{lock}/{long}{name}"), None, mode)
    }

    /// The lock's znode itself, in any kind.
    fn lock_znode(&mut self, chance: &mut Chance, lock: String) -> Command {
        let mode = chance.pick(&[
            CreateMode::Persistent,
            CreateMode::Persistent,
            CreateMode::Container,
            CreateMode::PersistentWithTtl,
            CreateMode::Ephemeral,
        ]);
        let create = create(lock, self.data(chance), mode);
        Command::Client(if mode.has_ttl() {
            Request::CreateTtl(create, 1_000)
        } else {
            Request::Create2(create)
        })
    }

    fn op(&mut self, chance: &mut Chance, place: Option<&Place>) -> Op {
        let lock = chance.pick(&LOCKS).to_owned();
        match (chance.below(10), place) {
            // Mostly of one lock: several places of one multi.
            (0..=3, _) => {
                let lock = place.map_or(lock, |place| place.lock.clone());
                Op::Create(self.plain(chance, &lock))
            }
            (4, Some(place)) => Op::Delete { path: place.path.clone(), version: Version::ANY },
            (5, _) => Op::SetData(SetData { path: lock, data: self.data(chance), version: Version::ANY }),
            (6, _) => Op::Delete { path: lock, version: Version::ANY },
            (7, _) => match self.lock_znode(chance, lock) {
                Command::Client(Request::CreateTtl(create, ttl_ms)) => Op::CreateTtl(create, ttl_ms),
                Command::Client(Request::Create2(create)) => Op::Create2(create),
                _ => unreachable!("it is a create"),
            },
            _ => Op::Check { path: "/".to_owned(), version: Version::ANY },
        }
    }
}

pub fn proposal(session: SessionId, attachment: Attachment, command: Command) -> Proposal {
    let origin = Origin { node: NodeId(1), incarnation: 1, request: 1 };
    Proposal { origin, session, attachment, identities: Default::default(), command }
}

fn places(state: &Machine, is_wanted: impl Fn(&LockView<'_>) -> bool) -> Vec<Place> {
    let mut places = Vec::new();
    for lock in state.locks().filter(is_wanted) {
        places.extend(lock.holders().chain(lock.waiters()).map(|place| Place {
            lock: lock.path().to_owned(),
            path: place.path,
            token: place.token,
            session: place.session,
        }));
    }
    places
}

fn claim(chance: &mut Chance, place: &Place) -> Claim {
    let wrong = i64::from(chance.one_in(12));
    Claim { path: place.path.as_str().into(), token: FencingToken(place.token.0 - wrong) }
}

fn mode(chance: &mut Chance) -> Mode {
    chance.pick(&[
        Mode::Exclusive,
        Mode::Exclusive,
        Mode::Shared,
        Mode::Shared,
        Mode::Permits(1),
        Mode::Permits(2),
    ])
}

fn create(path: String, data: Option<Bytes>, mode: CreateMode) -> Create {
    Create { path, data, acl: Some(Acl::shared_open()), flags: mode.flags() }
}

fn some_acl(chance: &mut Chance) -> Arc<[Acl]> {
    let without = chance.pick(&[perms::CREATE, perms::DELETE, perms::READ, 0]);
    [Acl { perms: perms::ALL & !without, id: Id::anyone() }].into()
}
