//! Records what the log does to a reference machine, and turns it into facts.
//!
//! [`Reference`] applies a proposal to its machine with a [`Recorder`] as the sink. Then
//! [`FactRecorder::answered`] makes the facts about the answer, and [`FactRecorder::facts`] those about each
//! item in the recorder.

mod data;
mod events;
mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use rowlock_proto::Request;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner as Asked, Party, PlaceState, place_number};
use rowlock_proto::path::{join, name};
use rowlock_proto::report::HistoryEntry;
use rowlock_proto::response::OpResult;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, Zxid};
use rowlock_state::command::{Attachment, Command, Proposal};
use rowlock_state::outcome::{
    Applied, Change, ChangeKind, EventSink, LockEvent, LockEventKind, SessionEnd, Why,
};
use rowlock_state::{Deadline, Machine, Question};

use crate::history::{Fact, Lock, Locks, Millis, Owner, Reply};

pub use reference::Reference;

/// The least bytes of an outcome, and of each result of a multi.
const RESULT_BYTES_MIN: usize = size_of::<OpResult>();

/// One thing that a command did.
#[derive(Clone, Debug)]
pub enum Recorded {
    Changed {
        zxid: Zxid,
        path: String,
        kind: ChangeKind,
    },
    Opened(SessionId, Attachment, u32),
    /// A session moved to another connection.
    Attached(SessionId, Attachment, u32),
    Ended(SessionId, SessionEnd),
    /// The lock at this path was granted.
    Granted {
        zxid: Zxid,
        lock: String,
        token: FencingToken,
        session: SessionId,
    },
    /// A holder of the lock at this path goes on holding in another mode.
    Converted {
        lock: String,
        token: FencingToken,
        mode: Mode,
    },
    /// A holder of the lock at this path was asked.
    Asked {
        lock: String,
        token: FencingToken,
        asked_ms: i64,
        deadline: Option<Deadline>,
    },
    /// A place in the queue of the lock at this path is gone. `held`: it held the lock.
    Gone {
        lock: String,
        token: FencingToken,
        session: SessionId,
        held: bool,
        why: Why,
    },
    /// What people hear of it.
    Told(Box<HistoryEntry>),
}

/// Facts about one command, in order.
#[derive(Clone, Debug, Default)]
pub struct Recorder(pub Vec<Recorded>);

impl EventSink for Recorder {
    fn changed(&mut self, change: &Change<'_>) {
        let (zxid, path, kind) = (change.zxid, change.path.to_owned(), change.kind);
        self.0.push(Recorded::Changed { zxid, path, kind });
    }

    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.0.push(Recorded::Opened(session, attachment, timeout_ms));
    }

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.0.push(Recorded::Attached(session, attachment, timeout_ms));
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        self.0.push(Recorded::Ended(session, end));
    }

    fn lock(&mut self, event: &LockEvent<'_>) {
        let (zxid, token, session) = (event.zxid, event.token, event.session);
        let lock = || event.lock.to_owned();
        self.0.push(Recorded::Told(Box::new(events::entry(event))));
        match event.kind {
            LockEventKind::Granted { .. } => {
                self.0.push(Recorded::Granted { zxid, lock: lock(), token, session })
            }
            LockEventKind::Gone { held_ms, why, .. } => {
                self.0.push(Recorded::Gone { lock: lock(), token, session, held: held_ms.is_some(), why });
            }
            LockEventKind::Converted => {
                self.0.push(Recorded::Converted { lock: lock(), token, mode: event.mode });
            }
            LockEventKind::Requested { .. } | LockEventKind::Asked => {}
        }
    }

    fn asked(&mut self, event: &LockEvent<'_>, question: &Question) {
        let (lock, token) = (event.lock.to_owned(), event.token);
        let Question { asked_ms, deadline, .. } = *question;
        self.0.push(Recorded::Told(Box::new(events::entry(event))));
        self.0.push(Recorded::Asked { lock, token, asked_ms, deadline });
    }
}

/// What the maker of a place asked for, from its request and not from the state.
#[derive(Clone, Copy)]
struct Wish {
    mode: Mode,
    owner: Option<Owner>,
    has_maximum: bool,
    lock_delay_ms: u32,
    min_hold_ms: u32,
    min_hold_lapses: bool,
    /// When the place was granted its lock.
    granted: Option<Millis>,
}

impl Wish {
    /// Until when the lock is granted to no other place, if this one is lost at `at`.
    fn kept_until(&self, loss: Why, at: Millis) -> Millis {
        let may_believe = matches!(loss, Why::SessionExpired | Why::SessionEnded);
        let lock_delay_ms = if may_believe { self.lock_delay_ms } else { 0 };
        let has_lapsed = self.min_hold_lapses && loss != Why::Released;
        let min_hold_ms = if loss == Why::Forced || has_lapsed { 0 } else { self.min_hold_ms };
        let granted = self.granted.unwrap_or(at);
        Millis((at.0 + i64::from(lock_delay_ms)).max(granted.0 + i64::from(min_hold_ms)))
    }
}

/// Makes facts of what was recorded. Remembers the queue members, because a deleted znode cannot be asked any
/// more.
pub struct FactRecorder {
    locks: Locks,
    members: BTreeMap<String, (Lock, FencingToken)>,
    /// By the path of the queue znode without its number.
    wishes: BTreeMap<String, Wish>,
    /// Requests of the members.
    places: BTreeMap<(Lock, FencingToken), Wish>,
    /// Until when locks are kept for holders that have gone.
    delays: BTreeMap<Lock, Millis>,
    /// The address that each session's latest command came from.
    addresses: BTreeMap<SessionId, String>,
    /// Numbers that clients give, with the user or the address that they are of.
    numbers: BTreeMap<(u64, String), u64>,
}

impl FactRecorder {
    pub fn new(locks: Locks) -> Self {
        let (members, wishes, places) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (delays, addresses, numbers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        FactRecorder { locks, members, wishes, places, delays, addresses, numbers }
    }

    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// The limits of all locks in a state.
    pub fn limits(&self, machine: &Machine) -> Vec<Fact> {
        let all = self.locks.all();
        all.map(|(lock, path)| Fact::Limit { lock, limit: limit_of(machine, path) }).collect()
    }

    /// The facts about the answer of a command, before those about its effects. `changed`: it took a zxid, or
    /// something was recorded; otherwise its answer may be that of an earlier time.
    pub fn answered(&mut self, proposal: &Proposal, applied: &Applied, changed: bool) -> Vec<Fact> {
        // A sync that comes late orders nothing any more, and its client is not told.
        let no_effect = matches!(
            proposal.command,
            Command::Reattach { .. } | Command::Noop | Command::Client(Request::Sync(_))
        );
        if proposal.session == SessionId::NONE || no_effect {
            return Vec::new();
        }
        let (session, attachment) = (proposal.session, proposal.attachment);
        self.addresses.insert(session, address_in(&proposal.identities));
        let refused = applied.result.as_ref().err().copied();
        let mut facts = vec![Fact::Answered { session, attachment, refused }];
        let (once, command) = written(&proposal.command);
        if let (Some((id, acked)), false) = (once, is_stale(applied)) {
            let reply = self.reply(command, &applied.result);
            facts.push(Fact::Once { session, id, acked, changed, reply });
        }
        if let Command::Client(Request::Convert { claim, mode, prefix }) = command {
            self.note_convert(claim, *mode, prefix, &applied.result);
        }
        if let (Command::Client(Request::ForceRelease(claim)), Ok(Response::Held(ended)), true) =
            (command, &applied.result, changed)
            && claim.token == FencingToken(0)
            && ended.contains(&true)
        {
            let lock = self.locks.find(&claim.path).filter(|lock| self.delays.remove(lock).is_some());
            facts.extend(lock.map(|lock| Fact::Undelayed { lock }));
        }
        // A repeated answer was told the first time.
        if let (true, Command::Client(Request::Acquire(all)), Ok(Response::PlaceStates(place_states))) =
            (changed, command, &applied.result)
        {
            self.note(all, proposal);
            let each = all.iter().zip(place_states);
            facts.extend(
                each.filter_map(|(acquire, place_state)| self.refusal(proposal, acquire, place_state)),
            );
        }
        facts
    }

    /// The facts in it. `machine` is the state after the command.
    pub fn facts(&mut self, recorded: Recorded, machine: &Machine, at: Millis) -> Vec<Fact> {
        match recorded {
            Recorded::Opened(session, attachment, timeout_ms) => {
                vec![Fact::SessionOpened { session, attachment, timeout_ms, at }]
            }
            Recorded::Attached(session, attachment, timeout_ms) => {
                vec![Fact::SessionAttached { session, attachment, timeout_ms, at }]
            }
            Recorded::Told(entry) => vec![Fact::LockEvent(Arc::from(entry))],
            Recorded::Ended(session, end) => vec![Fact::SessionEnded { session, end, at }],
            Recorded::Granted { zxid, lock: path, token, session } => {
                let Some(lock) = self.locks.find(&path) else { return Vec::new() };
                let limit = limit_of(machine, &path);
                self.places.entry((lock, token)).and_modify(|wish| wish.granted = Some(at));
                vec![Fact::Entitled { lock, token, session, limit, zxid, at }]
            }
            Recorded::Converted { lock, token, mode } => {
                let lock = self.locks.find(&lock);
                lock.map(|lock| Fact::Converted { lock, token, mode }).into_iter().collect()
            }
            Recorded::Asked { lock, token, asked_ms, deadline } => {
                let Some(lock) = self.locks.find(&lock) else { return Vec::new() };
                let deadline = deadline.map(|it| (Millis(it.since_ms), it.within_ms));
                vec![Fact::Questioned { lock, token, asked: Millis(asked_ms), deadline }]
            }
            Recorded::Gone { lock, token, session, held, why } => match self.locks.find(&lock) {
                Some(lock) => {
                    let is_there = machine.stat(self.locks.path(lock)).is_some();
                    self.gone((lock, token, is_there), session, held.then_some(why), why, at)
                }
                None => Vec::new(),
            },
            Recorded::Changed { zxid, path, kind } => self.changed(machine, zxid, path, kind, at),
        }
    }

    fn changed(
        &mut self,
        machine: &Machine,
        zxid: Zxid,
        path: String,
        kind: ChangeKind,
        at: Millis,
    ) -> Vec<Fact> {
        if let Some(lock) = self.locks.find(&path) {
            let mut facts = vec![Fact::Limit { lock, limit: limit_of(machine, &path) }];
            if kind == ChangeKind::Deleted {
                facts.push(Fact::Deleted { path });
                let delay = self.delays.remove(&lock).filter(|until| *until > at);
                facts.extend(delay.map(|_| Fact::Undelayed { lock }));
            }
            return facts;
        }
        match kind {
            ChangeKind::Deleted => {
                let left =
                    self.members.remove(&path).map(|(lock, token)| Fact::Left { lock, token, at: zxid });
                [Fact::Deleted { path }].into_iter().chain(left).collect()
            }
            ChangeKind::Created => self.created(machine, path),
            ChangeKind::DataChanged => Vec::new(),
        }
    }

    /// A place is gone. `loss`: why its lock was lost, if it held it. `is_there`: the lock's znode is.
    fn gone(
        &mut self,
        (lock, token, is_there): (Lock, FencingToken, bool),
        session: SessionId,
        loss: Option<Why>,
        why: Why,
        at: Millis,
    ) -> Vec<Fact> {
        let wish = self.places.remove(&(lock, token));
        let mut facts = Vec::new();
        let until = wish.zip(loss).map_or(at, |(wish, loss)| wish.kept_until(loss, at));
        if is_there && until > at {
            let known = self.delays.entry(lock).or_insert(until);
            *known = until.max(*known);
            facts.push(Fact::Delayed { lock, until });
        }
        if why == Why::Revoked {
            // Of a place that is not known it may be so.
            let has_maximum = wish.is_none_or(|wish| wish.has_maximum);
            facts.push(Fact::Revoked { lock, token, session, at, has_maximum });
        }
        facts.push(Fact::Gone { lock, token, why });
        facts
    }

    /// Remembers what a command asks for, before its effects are told.
    fn note(&mut self, all: &[Acquire], proposal: &Proposal) {
        for acquire in all {
            let owner = self.owner_in(acquire.owner, proposal);
            let Acquire { mode, lock_delay_ms, min_hold_ms, min_hold_lapses, .. } = *acquire;
            let (has_maximum, granted) = (acquire.max_hold_ms != 0, None);
            let wish =
                Wish { mode, owner, has_maximum, lock_delay_ms, min_hold_ms, min_hold_lapses, granted };
            self.wishes.insert(join(&acquire.lock, &acquire.prefix), wish);
        }
    }

    /// A convert may make a new place, for whom the old one was. The minimum hold goes on in that one.
    fn note_convert(
        &mut self,
        claim: &Claim,
        mode: Mode,
        prefix: &str,
        result: &Result<Response, ErrorCode>,
    ) {
        let Some((lock, _)) = self.members.get(&*claim.path) else { return };
        let Some(old) = self.places.get_mut(&(*lock, claim.token)) else { return };
        self.wishes.insert(join(self.locks.path(*lock), prefix), Wish { mode, granted: None, ..*old });
        let is_new = |state: &PlaceState| matches!(state, PlaceState::Held(new) if new.token != claim.token);
        if let Ok(Response::PlaceStates(states)) = result
            && states.iter().any(is_new)
        {
            old.min_hold_ms = 0;
        }
    }

    /// What was asked for with this place. If a client only created a znode, its name says it, as in
    /// Curator's and kazoo's recipes.
    fn wish(&self, path: &str) -> Wish {
        let asked = self.wishes.range(..=path.to_owned()).next_back();
        let asked = asked.filter(|(prefix, _)| path.starts_with(prefix.as_str()));
        let says = |word: &str| name(path).contains(word);
        let mode = match (says("__READ__") || says("__rlock__"), says("-lease-")) {
            (true, _) => Mode::Shared,
            (false, true) => Mode::Permits(1),
            (false, false) => Mode::Exclusive,
        };
        let plain = Wish {
            mode,
            owner: None,
            has_maximum: false,
            lock_delay_ms: 0,
            min_hold_ms: 0,
            min_hold_lapses: false,
            granted: None,
        };
        asked.map_or(plain, |(_, wish)| *wish)
    }

    /// A znode that the same command deleted again tells nothing.
    fn created(&mut self, machine: &Machine, path: String) -> Vec<Fact> {
        let Some(stat) = machine.stat(&path).filter(|stat| stat.ephemeral_owner != SessionId::NONE) else {
            return Vec::new();
        };
        let (session, token) = (stat.ephemeral_owner, FencingToken(stat.czxid.0));
        let mut facts = Vec::new();
        // Other ephemeral children are no places.
        let is_numbered = path.bytes().rev().take_while(u8::is_ascii_digit).count() >= 10;
        if let Some(lock) = self.locks.of_member(&path).filter(|_| is_numbered) {
            self.members.insert(path.clone(), (lock, token));
            let wish @ Wish { mode, owner, .. } = self.wish(&path);
            self.places.insert((lock, token), wish);
            let address = self.addresses.get(&session).cloned().unwrap_or_default();
            let number = self.number(place_number(&path), address);
            facts.push(Fact::Queued { lock, token, session, mode, owner, number });
        }
        facts.push(Fact::EphemeralCreated { path, session });
        facts
    }

    /// The global number for a number that belongs to one user or one address.
    fn number(&mut self, number: u64, of: String) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry((number, of)).or_insert(next)
    }

    /// The owner as deadlock detection sees it: a named one is one user's, by what it has proven or else by
    /// its address; works under a place only what comes from the address of its maker.
    fn owner_in(&mut self, owner: Asked, proposal: &Proposal) -> Option<Owner> {
        let address = address_in(&proposal.identities);
        let proven = proposal.identities.iter().find(|id| matches!(&*id.scheme, "digest" | "sasl" | "x509"));
        let user = proven.map_or(address.clone(), |id| format!("{}:{}", id.scheme, id.id));
        match owner {
            Asked::Unnamed => None,
            Asked::Session => Some(Owner::Session(proposal.session)),
            Asked::Named(number) => Some(Owner::Named(self.number(number, user))),
            Asked::Under(number) => Some(Owner::Under(proposal.session, self.number(number, address))),
        }
    }

    fn refusal(&mut self, proposal: &Proposal, acquire: &Acquire, place_state: &PlaceState) -> Option<Fact> {
        let PlaceState::Deadlock(circle) = place_state else { return None };
        let owner = self.owner_in(acquire.owner, proposal);
        let place = |party: &Party| Some((self.locks.of_member(&party.path)?, party.token));
        Some(Fact::Refused {
            lock: self.locks.find(&acquire.lock)?,
            session: proposal.session,
            mode: acquire.mode,
            owner,
            circle: circle.iter().filter_map(place).collect(),
        })
    }

    /// An answer, in the form for the checkers.
    fn reply(&self, command: &Command, result: &Result<Response, ErrorCode>) -> Reply {
        let token = |place_state: &PlaceState| match place_state {
            PlaceState::Held(claim) | PlaceState::Waiting { claim, .. } => Some(claim.token),
            _ => None,
        };
        let places = match (command, result) {
            (Command::Client(Request::Acquire(all)), Ok(Response::PlaceStates(place_states))) => {
                let place = |(acquire, place_state): (&Acquire, &PlaceState)| {
                    Some((self.locks.find(&acquire.lock)?, token(place_state)))
                };
                all.iter().zip(place_states).filter_map(place).collect()
            }
            (Command::Client(Request::Convert { claim, .. }), Ok(Response::PlaceStates(place_states))) => {
                let lock = self.locks.of_member(&claim.path);
                lock.into_iter().zip(place_states.iter().map(token)).collect()
            }
            _ => Vec::new(),
        };
        let results = if let Ok(Response::Multi(results)) = result { results.len() } else { 1 };
        let refused = result.as_ref().err().copied();
        Reply { places, text: format!("{result:?}"), bytes: results * RESULT_BYTES_MIN, refused }
    }
}

/// The limit that the data of a lock's znode name, by the words of docs/protocol.md.
fn limit_of(machine: &Machine, lock: &str) -> Option<u32> {
    let (data, _) = machine.get_data(lock, &[]).ok()?;
    let text = String::from_utf8(data?.to_vec()).ok()?;
    text.strip_prefix("permits=")?.trim_end().parse().ok().filter(|limit| *limit > 0)
}

/// Number and acknowledgement of a numbered write, and the write itself.
fn written(command: &Command) -> (Option<(u64, u64)>, &Command) {
    match command {
        Command::Tagged { id, acked, command } => (Some((*id, *acked)), command),
        command => (None, command),
    }
}

/// It was not run because its session has ended or has moved to another connection.
fn is_stale(applied: &Applied) -> bool {
    matches!(applied.result, Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired))
}

fn address_in(who: &[Id]) -> String {
    who.iter().find(|id| id.scheme == "ip").map(|id| id.id.clone()).unwrap_or_default()
}
