//! Recorder of the log's effects on a reference machine, as facts.
//!
//! [`Reference`] applies a proposal to its machine with a [`Recorder`] as the sink. Then
//! [`FactRecorder::answered`] returns the facts about the answer, and [`FactRecorder::facts`] the facts about
//! each item in the recorder.

mod data;
mod reference;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_proto::Request;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner as Asked, Party, QueuePosition, place_number};
use rowlock_proto::path::{join, name};
use rowlock_proto::report::{HistoryEntry, HistoryEvent};
use rowlock_proto::response::OpResult;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, Zxid};
use rowlock_state::command::{Attachment, Command, Proposal};
use rowlock_state::outcome::{
    Applied, Change, ChangeKind, EndReason, EventContext, EventSink, LockEvent, LockEventKind, SessionEnd,
};
use rowlock_state::{Deadline, Machine, Question};

use crate::history::{Fact, Lock, Locks, Millis, Owner, Reply};

pub use reference::{REFERENCE_NODE, Reference};
pub use start::hidden_owners;

/// Least size of an outcome, and of each result of a multi, in bytes.
const RESULT_BYTES_MIN: usize = size_of::<OpResult>();

/// Single effect of a command.
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
    /// The log granted the lock at this path.
    Granted {
        zxid: Zxid,
        lock: String,
        token: FencingToken,
        session: SessionId,
    },
    /// A holder of the lock at this path converts its hold to another mode.
    Converted {
        lock: String,
        token: FencingToken,
        mode: Mode,
    },
    /// A client requested the lock at this path from its holder.
    Asked {
        lock: String,
        token: FencingToken,
        asked_ms: i64,
        deadline: Option<Deadline>,
    },
    /// A position left the queue of the lock at this path. `held`: the position held the lock.
    Gone {
        lock: String,
        token: FencingToken,
        session: SessionId,
        held: bool,
        why: EndReason,
    },
    /// Entry for event streams and histories.
    Told(Box<HistoryEntry>),
}

/// Effects of one command, in order.
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

    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        let (zxid, token, session) = (context.zxid, event.token, event.session);
        let lock = || event.lock.to_owned();
        self.0.push(Recorded::Told(Box::new(entry(event, context))));
        match event.kind {
            LockEventKind::Granted { .. } => {
                self.0.push(Recorded::Granted { zxid, lock: lock(), token, session })
            }
            LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
                let (held, why) = (end.held_ms.is_some(), end.reason);
                self.0.push(Recorded::Gone { lock: lock(), token, session, held, why });
            }
            LockEventKind::Converted => {
                self.0.push(Recorded::Converted { lock: lock(), token, mode: event.mode });
            }
            LockEventKind::Requested { .. } | LockEventKind::Asked { .. } => {}
        }
    }

    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        let (lock, token) = (event.lock.to_owned(), event.token);
        let Question { asked_ms, deadline, .. } = *question;
        self.0.push(Recorded::Told(Box::new(entry(event, context))));
        self.0.push(Recorded::Asked { lock, token, asked_ms, deadline });
    }
}

/// Returns the entry of event streams and histories (docs/monitoring.md).
fn entry(event: &LockEvent<&str>, context: &EventContext<'_>) -> HistoryEntry {
    let event = HistoryEvent::Lock(event.map(|text| text.to_string()));
    HistoryEntry { time_ms: context.time_ms, zxid: context.zxid, event }
}

/// Requested properties of a queue position, from the client's request and not from the state.
#[derive(Clone, Copy)]
struct Wish {
    mode: Mode,
    owner: Option<Owner>,
    has_maximum: bool,
    lock_delay_ms: u32,
    min_hold_ms: u32,
    min_hold_lapses: bool,
    /// Time of the grant.
    granted: Option<Millis>,
}

impl Wish {
    /// Returns the time until which no other position is granted the lock, after a loss of this position at
    /// `at`.
    fn kept_until(&self, loss: EndReason, at: Millis) -> Millis {
        let may_believe = matches!(loss, EndReason::SessionExpired | EndReason::SessionEnded);
        let lock_delay_ms = if may_believe { self.lock_delay_ms } else { 0 };
        let has_lapsed = self.min_hold_lapses && loss != EndReason::Released;
        let min_hold_ms = if loss == EndReason::Forced || has_lapsed { 0 } else { self.min_hold_ms };
        let granted = self.granted.unwrap_or(at);
        Millis((at.0 + i64::from(lock_delay_ms)).max(granted.0 + i64::from(min_hold_ms)))
    }
}

/// Translates recorded effects into facts. Remembers the queue members, because a deleted znode is no longer
/// in the state.
pub struct FactRecorder {
    locks: Locks,
    members: BTreeMap<String, (Lock, FencingToken)>,
    /// Paths that the current command has named whole: znodes without a number from the cluster.
    unnumbered: BTreeSet<String>,
    /// Wishes by the path of the queue znode without its number.
    wishes: BTreeMap<String, Wish>,
    /// Wishes of the queue members.
    places: BTreeMap<(Lock, FencingToken), Wish>,
    /// Ends of lock-delays and minimum holds after a holder has left.
    delays: BTreeMap<Lock, Millis>,
    /// Address of each session's latest command.
    addresses: BTreeMap<SessionId, String>,
    /// Global numbers of the clients' numbers, by number and by user or address.
    numbers: BTreeMap<(u64, String), u64>,
}

impl FactRecorder {
    pub fn new(locks: Locks) -> Self {
        let (members, wishes, places) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (delays, addresses, numbers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let unnumbered = BTreeSet::new();
        FactRecorder { locks, members, unnumbered, wishes, places, delays, addresses, numbers }
    }

    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Returns the limits of all locks in a state.
    pub fn limits(&self, machine: &Machine) -> Vec<Fact> {
        let all = self.locks.all();
        all.map(|(lock, path)| Fact::Limit { lock, limit: limit_of(machine, path) }).collect()
    }

    /// Returns the facts about the answer of a command, before the facts about its effects. `changed`: the
    /// command took a zxid, or the recorder has effects; otherwise the answer may repeat an earlier one.
    pub fn answered(&mut self, proposal: &Proposal, applied: &Applied, changed: bool) -> Vec<Fact> {
        // A late sync orders nothing any more, and its client gets no answer.
        let no_effect = matches!(
            proposal.command,
            Command::Reattach { .. } | Command::Noop | Command::Client(Request::Sync(_))
        );
        if proposal.session == SessionId::NONE || no_effect {
            return Vec::new();
        }
        let (session, attachment) = (proposal.session, proposal.attachment);
        self.unnumbered = data::unnumbered(written(&proposal.command).1);
        self.addresses.insert(session, address_in(&proposal.identities));
        let refused = applied.result.as_ref().err().copied();
        let mut facts = vec![Fact::Answered { session, attachment, refused }];
        let (once, command) = written(&proposal.command);
        if let (Some((id, acked)), false) = (once, is_stale(applied)) {
            let reply = self.reply(command, &applied.result);
            facts.push(Fact::Once { session, id, acked, changed, reply });
        }
        if let Command::Client(Request::Convert { claim, mode, prefix }) = command {
            self.record_convert(claim, *mode, prefix, &applied.result);
        }
        if let (Command::Client(Request::ForceRelease(claim)), Ok(Response::Held(ended)), true) =
            (command, &applied.result, changed)
            && claim.token == FencingToken(0)
            && ended.contains(&true)
        {
            let lock = self.locks.find(&claim.path).filter(|lock| self.delays.remove(lock).is_some());
            facts.extend(lock.map(|lock| Fact::Undelayed { lock }));
        }
        // The first answer reported these refusals; a repeated answer does not.
        if let (true, Command::Client(Request::Acquire(all)), Ok(Response::QueuePositions(positions))) =
            (changed, command, &applied.result)
        {
            self.record_acquires(all, proposal);
            let each = all.iter().zip(positions);
            facts.extend(each.filter_map(|(acquire, position)| self.refusal(proposal, acquire, position)));
        }
        facts
    }

    /// Returns the facts about an effect. `machine` is the state after the command.
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

    /// Returns the facts about a position that has left. `loss`: reason of a holder's loss. `is_there`: the
    /// lock's znode exists.
    fn gone(
        &mut self,
        (lock, token, is_there): (Lock, FencingToken, bool),
        session: SessionId,
        loss: Option<EndReason>,
        why: EndReason,
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
        if why == EndReason::Revoked {
            // An unknown position may have a maximum hold.
            let has_maximum = wish.is_none_or(|wish| wish.has_maximum);
            facts.push(Fact::Revoked { lock, token, session, at, has_maximum });
        }
        facts.push(Fact::Gone { lock, token, why });
        facts
    }

    /// Remembers the requests of a command, before its effects.
    fn record_acquires(&mut self, all: &[Acquire], proposal: &Proposal) {
        for acquire in all {
            let owner = self.owner_in(acquire.owner, proposal);
            let Acquire { mode, lock_delay_ms, min_hold_ms, min_hold_lapses, .. } = *acquire;
            let (has_maximum, granted) = (acquire.max_hold_ms != 0, None);
            let wish =
                Wish { mode, owner, has_maximum, lock_delay_ms, min_hold_ms, min_hold_lapses, granted };
            self.wishes.insert(join(&acquire.lock, &acquire.prefix), wish);
        }
    }

    /// Remembers the wish of a convert, which may create a new position with the owner of the old one. The
    /// minimum hold continues in the new position.
    fn record_convert(
        &mut self,
        claim: &Claim,
        mode: Mode,
        prefix: &str,
        result: &Result<Response, ErrorCode>,
    ) {
        let Some((lock, _)) = self.members.get(&*claim.path) else { return };
        let Some(old) = self.places.get_mut(&(*lock, claim.token)) else { return };
        self.wishes.insert(join(self.locks.path(*lock), prefix), Wish { mode, granted: None, ..*old });
        let is_new =
            |state: &QueuePosition| matches!(state, QueuePosition::Held(new) if new.token != claim.token);
        if let Ok(Response::QueuePositions(states)) = result
            && states.iter().any(is_new)
        {
            old.min_hold_ms = 0;
        }
    }

    /// Returns the wish of the position at `path`. For a position created as a plain znode, the name states
    /// the mode, as in Curator's and kazoo's recipes.
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

    /// Returns the facts of a created znode, none for a znode that the same command deleted again.
    fn created(&mut self, machine: &Machine, path: String) -> Vec<Fact> {
        let Some(stat) = machine.stat(&path).filter(|stat| stat.ephemeral_owner != SessionId::NONE) else {
            return Vec::new();
        };
        let (session, token) = (stat.ephemeral_owner, FencingToken(stat.czxid.0));
        let mut facts = Vec::new();
        // Ephemeral children without a number are no queue positions.
        let is_numbered = !self.unnumbered.contains(&path)
            && path.bytes().rev().take_while(u8::is_ascii_digit).count() >= 10;
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

    /// Returns the global number for a number that belongs to one user or one address.
    fn number(&mut self, number: u64, of: String) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry((number, of)).or_insert(next)
    }

    /// Returns the owner as deadlock detection sees the owner: a named owner belongs to one user (by proven
    /// identity or else by address); only commands from the creator's address work under a position.
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

    fn refusal(&mut self, proposal: &Proposal, acquire: &Acquire, position: &QueuePosition) -> Option<Fact> {
        let QueuePosition::Deadlock(circle) = position else { return None };
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

    /// Returns an answer in the form for the checkers.
    fn reply(&self, command: &Command, result: &Result<Response, ErrorCode>) -> Reply {
        let token = |position: &QueuePosition| match position {
            QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. } => Some(claim.token),
            _ => None,
        };
        let places = match (command, result) {
            (Command::Client(Request::Acquire(all)), Ok(Response::QueuePositions(positions))) => {
                let place = |(acquire, position): (&Acquire, &QueuePosition)| {
                    Some((self.locks.find(&acquire.lock)?, token(position)))
                };
                all.iter().zip(positions).filter_map(place).collect()
            }
            (Command::Client(Request::Convert { claim, .. }), Ok(Response::QueuePositions(positions))) => {
                let lock = self.locks.of_member(&claim.path);
                lock.into_iter().zip(positions.iter().map(token)).collect()
            }
            _ => Vec::new(),
        };
        let results = if let Ok(Response::Multi(results)) = result { results.len() } else { 1 };
        let refused = result.as_ref().err().copied();
        Reply { places, text: format!("{result:?}"), bytes: results * RESULT_BYTES_MIN, refused }
    }
}

/// Returns the limit that the data of a lock's znode names, by the format of docs/protocol.md.
fn limit_of(machine: &Machine, lock: &str) -> Option<u32> {
    let (data, _) = machine.get_data(lock, &[]).ok()?;
    let text = String::from_utf8(data?.to_vec()).ok()?;
    text.strip_prefix("permits=")?.trim_end().parse().ok().filter(|limit| *limit > 0)
}

/// Returns number and acknowledgment of a numbered write, and the write itself.
fn written(command: &Command) -> (Option<(u64, u64)>, &Command) {
    match command {
        Command::Tagged { id, acked, command } => (Some((*id, *acked)), command),
        command => (None, command),
    }
}

/// Reports whether the command did not run because its session had ended or moved to another connection.
fn is_stale(applied: &Applied) -> bool {
    matches!(applied.result, Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired))
}

fn address_in(who: &[Id]) -> String {
    who.iter().find(|id| id.scheme == "ip").map(|id| id.id.clone()).unwrap_or_default()
}
