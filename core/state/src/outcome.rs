//! Results of applying a command: an answer for the sender, and events for watchers.

use rowlock_proto::acl::Acl;
pub use rowlock_proto::lock_event::{EndReason, LockEvent, LockEventKind, PositionEnd};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, SessionId, Zxid};

use crate::command::Attachment;
use crate::locks::Question;
use crate::rules::Rules;

/// The answer to one proposal, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The last zxid after this command: the command's own, if the command took one.
    pub zxid: Zxid,
    /// The response to the client's request, or the error of a refusal. The cluster's own commands have an
    /// empty response.
    pub result: Result<Response, ErrorCode>,
    /// The attachment given by `OpenSession` or `Reattach`, beside an empty response.
    pub attached: Option<Attached>,
}

/// A session as attached to the connection that opened or resumed the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    pub session: SessionId,
    /// Attachment for this connection's proposals.
    pub attachment: Attachment,
    pub timeout_ms: u32,
}

impl Applied {
    /// Returns the size in bytes, approximately.
    pub fn weight(&self) -> usize {
        crate::dedup::weight(&self.result)
    }
}

/// The kind of a znode's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The znode was created; the parent's children changed.
    Created,
    /// The znode was deleted; the parent's children changed.
    Deleted,
    DataChanged,
}

/// A change of one znode. The watch table decides which watches fire.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub zxid: Zxid,
    /// Full path of the znode.
    pub path: &'a str,
    pub kind: ChangeKind,
    /// The znode's ACL (the last ACL, if deleted): only clients with READ receive events.
    pub acl: &'a [Acl],
    /// The parent's ACL, for child watches on the parent.
    pub parent_acl: &'a [Acl],
    /// The rules of locks: only clients that may see the znode receive events.
    pub rules: &'a Rules,
}

/// Command behind a lock event, and the permissions that decide who may read the event.
#[derive(Clone, Copy, Debug)]
pub struct EventContext<'a> {
    pub zxid: Zxid,
    /// Time of the command's batch: the leader's clock, milliseconds since 1970.
    pub time_ms: i64,
    /// The queue znode's ACL (the last ACL, if deleted).
    pub acl: &'a [Acl],
    /// The ACL of the lock's znode.
    pub lock_acl: &'a [Acl],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionEnd {
    /// The client closed the session.
    Closed,
    Expired,
    /// A superuser ended the session. The client may not know yet, as after an expiry.
    Ended,
}

/// Receives the changes of a command in order, during apply. Defined here, implemented by layers above.
pub trait EventSink {
    fn changed(&mut self, change: &Change<'_>);
    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// Called when a session has moved to another connection of any node.
    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// Called when a session has ended, after the deletions of its ephemerals.
    fn session_ended(&mut self, session: SessionId, end: SessionEnd);
    /// Called when a lock's queue has changed, after the znode changes of the same command.
    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        let _ = (event, context);
    }
    /// Called with a holder's new question: an [`LockEventKind::Asked`], and the only call for this kind.
    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        let _ = (event, context, question);
    }
}

impl EventSink for () {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
}
