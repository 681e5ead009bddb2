//! Writes down what the log does to the reference machine, so that the world can tell it as facts.

use std::collections::BTreeMap;

use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::Machine;
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{Change, ChangeKind, EventSink, SessionEnd};

use crate::client::lock_of;
use crate::history::{Fact, Lock, Millis};

/// One thing that a command did.
pub(super) enum Recorded {
    Changed { zxid: Zxid, path: String, kind: ChangeKind },
    Opened(SessionId, Attachment, u32),
    Attached(SessionId, Attachment, u32),
    Ended(SessionId, SessionEnd),
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
}

/// Makes facts of what was recorded. Remembers the queue members, because a deleted znode cannot be asked any more.
#[derive(Default)]
pub(super) struct Scribe {
    members: BTreeMap<String, (Lock, FencingToken)>,
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
            Recorded::Changed { zxid, path, kind: ChangeKind::Deleted } => {
                let left =
                    self.members.remove(&path).map(|(lock, token)| Fact::Left { lock, token, at: zxid });
                [Fact::Deleted { path }].into_iter().chain(left).collect()
            }
            Recorded::Changed { path, kind: ChangeKind::Created, .. } => self.created(machine, path),
            Recorded::Changed { kind: ChangeKind::DataChanged, .. } => Vec::new(),
        }
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
            facts.push(Fact::Queued { lock, token, session });
        }
        facts.push(Fact::EphemeralCreated { path, session });
        facts
    }
}
