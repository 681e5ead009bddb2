//! Events of a command in the form to compare, and the sink that records a machine's.

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Claim;
use rowlock_proto::{SessionId, Zxid};
use rowlock_state::Question;
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{
    Change, ChangeKind, EventContext, EventSink, LockEvent, LockEventKind, SessionEnd,
};

/// A change, as the state publishes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A znode, with its list and the list of its parent.
    Changed {
        zxid: Zxid,
        path: String,
        kind: ChangeKind,
        acl: Vec<Acl>,
        parent_acl: Vec<Acl>,
    },
    Opened(SessionId, Attachment, u32),
    Attached(SessionId, Attachment, u32),
    Ended(SessionId, SessionEnd),
    /// A queue, with the time of the log, the list of the queue znode and the list of the lock.
    Lock {
        event: Box<LockEvent>,
        zxid: Zxid,
        time_ms: i64,
        acl: Vec<Acl>,
        lock_acl: Vec<Acl>,
    },
    /// A question to the holder at this position.
    Asked(Claim, Question),
}

impl Event {
    /// Returns the sort key for comparison. No promise is about the order of events of different locks.
    pub(crate) fn order(&self) -> (u8, &str) {
        match self {
            Event::Changed { .. } => (0, ""),
            Event::Opened(..) | Event::Attached(..) => (1, ""),
            Event::Lock { event, .. } => (2, &event.lock),
            Event::Asked(claim, _) => (2, claim.path.rsplit_once('/').map_or("", |(lock, _)| lock)),
            Event::Ended(..) => (3, ""),
        }
    }

    /// Returns the kind of a lock's event at this path, if the event is one.
    pub fn of_lock(&self) -> Option<(&str, &LockEventKind)> {
        if let Event::Lock { event, .. } = self { Some((&event.path, &event.kind)) } else { None }
    }
}

/// Sink that records events.
#[derive(Default)]
pub struct Heard(pub Vec<Event>);

impl EventSink for Heard {
    fn changed(&mut self, change: &Change<'_>) {
        self.0.push(Event::Changed {
            zxid: change.zxid,
            path: change.path.to_owned(),
            kind: change.kind,
            acl: change.acl.to_vec(),
            parent_acl: change.parent_acl.to_vec(),
        });
    }

    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.0.push(Event::Opened(session, attachment, timeout_ms));
    }

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.0.push(Event::Attached(session, attachment, timeout_ms));
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        self.0.push(Event::Ended(session, end));
    }

    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        self.0.push(Event::Lock {
            event: Box::new(event.map(|text| (*text).to_owned())),
            zxid: context.zxid,
            time_ms: context.time_ms,
            acl: context.acl.to_vec(),
            lock_acl: context.lock_acl.to_vec(),
        });
    }

    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        self.lock(event, context);
        let claim = Claim { path: event.path.into(), token: event.token };
        self.0.push(Event::Asked(claim, question.clone()));
    }
}
