//! Writes down what the log does to the reference machine, so that the world can tell it as facts.

use std::collections::BTreeMap;

use rowlock_proto::lock::{Acquire, Mode};
use rowlock_proto::path::join;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::Machine;
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{Change, ChangeKind, EventSink, LockEvent, LockEventKind, SessionEnd, Why};

use crate::history::{Fact, Lock, Millis, Owner};
use crate::state::client::{lock_of, lock_path, owner_in};

/// One thing that a command did.
pub(super) enum Recorded {
    Changed { zxid: Zxid, path: String, kind: ChangeKind },
    Opened(SessionId, Attachment, u32),
    Attached(SessionId, Attachment, u32),
    Ended(SessionId, SessionEnd),
    Granted { zxid: Zxid, lock: Lock, token: FencingToken, session: SessionId },
    Gone { lock: Lock, token: FencingToken, session: SessionId, held: bool, why: Why },
}

/// What one command did, in order.
#[derive(Default)]
pub(super) struct Recorder(pub(super) Vec<Recorded>);

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
        let Some(lock) = lock_of(event.path) else { return };
        let (zxid, token, session) = (event.zxid, event.token, event.session);
        match event.kind {
            LockEventKind::Granted { .. } => self.0.push(Recorded::Granted { zxid, lock, token, session }),
            LockEventKind::Gone { held_ms, why, .. } => {
                self.0.push(Recorded::Gone { lock, token, session, held: held_ms.is_some(), why });
            }
            LockEventKind::Requested { .. } | LockEventKind::Converted => {}
        }
    }
}

/// What the maker of a place asked for, by its own words and not by those of the state.
#[derive(Clone, Copy)]
struct Wish {
    mode: Mode,
    owner: Option<Owner>,
    lock_delay_ms: u32,
}

/// Makes facts of what was recorded. Remembers the queue members, because a deleted znode cannot be asked any more.
#[derive(Default)]
pub(super) struct Scribe {
    members: BTreeMap<String, (Lock, FencingToken)>,
    /// By the path of the queue znode without its number.
    wishes: BTreeMap<String, Wish>,
    delays: BTreeMap<(Lock, FencingToken), u32>,
}

impl Scribe {
    /// The facts in it. `machine` is the state after the command.
    pub(super) fn facts(&mut self, recorded: Recorded, machine: &Machine, at: Millis) -> Vec<Fact> {
        match recorded {
            Recorded::Opened(session, attachment, timeout_ms) => {
                vec![Fact::SessionOpened { session, attachment, timeout_ms, at }]
            }
            Recorded::Attached(session, attachment, timeout_ms) => {
                vec![Fact::SessionAttached { session, attachment, timeout_ms, at }]
            }
            Recorded::Ended(session, end) => vec![Fact::SessionEnded { session, end, at }],
            Recorded::Granted { zxid, lock, token, session } => {
                let limit = machine.lock_queue(&lock_path(lock)).and_then(|lock| lock.limit());
                vec![Fact::Entitled { lock, token, session, limit, zxid, at }]
            }
            Recorded::Gone { lock, token, session, held, why } => {
                let delay_ms = self.delays.remove(&(lock, token)).unwrap_or(0);
                match why {
                    Why::SessionExpired if held && delay_ms > 0 => {
                        vec![Fact::Delayed { lock, until: Millis(at.0 + i64::from(delay_ms)) }]
                    }
                    Why::Revoked => vec![Fact::Revoked { lock, token, session, at }],
                    _ => Vec::new(),
                }
            }
            Recorded::Changed { zxid, path, kind: ChangeKind::Deleted } => {
                let left =
                    self.members.remove(&path).map(|(lock, token)| Fact::Left { lock, token, at: zxid });
                [Fact::Deleted { path }].into_iter().chain(left).collect()
            }
            Recorded::Changed { path, kind: ChangeKind::Created, .. } => self.created(machine, path),
            Recorded::Changed { kind: ChangeKind::DataChanged, .. } => Vec::new(),
        }
    }

    /// Remembers what a command asks for, before its effects are told.
    pub(super) fn note(&mut self, all: &[Acquire], session: SessionId) {
        for Acquire { lock, prefix, mode, owner, lock_delay_ms, .. } in all {
            let owner = owner_in(*owner, session);
            let wish = Wish { mode: *mode, owner, lock_delay_ms: *lock_delay_ms };
            self.wishes.insert(join(lock, prefix), wish);
        }
    }

    /// What was asked for with this place; whoever only creates a znode wants the lock for itself.
    fn wish(&self, path: &str) -> Wish {
        let asked = self.wishes.range(..=path.to_owned()).next_back();
        let asked = asked.filter(|(prefix, _)| path.starts_with(prefix.as_str()));
        asked.map_or(Wish { mode: Mode::Exclusive, owner: None, lock_delay_ms: 0 }, |(_, wish)| *wish)
    }

    /// A znode that the same command deleted again tells nothing.
    fn created(&mut self, machine: &Machine, path: String) -> Vec<Fact> {
        let Some(stat) = machine.stat(&path).filter(|stat| stat.ephemeral_owner != SessionId::NONE) else {
            return Vec::new();
        };
        let (session, token) = (stat.ephemeral_owner, FencingToken(stat.czxid.0));
        let mut facts = Vec::new();
        if let Some(lock) = lock_of(&path) {
            self.members.insert(path.clone(), (lock, token));
            let Wish { mode, owner, lock_delay_ms } = self.wish(&path);
            self.delays.insert((lock, token), lock_delay_ms);
            facts.push(Fact::Queued { lock, token, session, mode, owner });
        }
        facts.push(Fact::EphemeralCreated { path, session });
        facts
    }
}
