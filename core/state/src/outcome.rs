//! What applying a command gives: an answer for its sender, and events for everybody who watches.

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Mode;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, Zxid};
use serde::{Deserialize, Serialize};

use crate::command::Attachment;
use crate::locks::Question;
use crate::rules::Rules;

/// The answer to one proposal, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The last zxid after this command (its own, where it took one).
    pub zxid: Zxid,
    /// The reply to the client's request, or the error of a refusal. The cluster's own commands have an empty
    /// reply.
    pub result: Result<Response, ErrorCode>,
    /// The attachment that `OpenSession` or `Reattach` has given, beside an empty reply.
    pub attached: Option<Attached>,
}

/// A session as the connection has it that has opened or resumed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    pub session: SessionId,
    /// The attachment for this connection's proposals.
    pub attachment: Attachment,
    pub timeout_ms: u32,
}

impl Applied {
    /// About how many bytes it takes.
    pub fn weight(&self) -> usize {
        crate::dedup::weight(&self.result)
    }
}

/// The kind of a znode's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It exists now; its parent's children changed.
    Created,
    /// It is gone; its parent's children changed.
    Deleted,
    DataChanged,
}

/// A change of one znode. Which watches it fires is the watch table's business.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub zxid: Zxid,
    /// Full path of the znode.
    pub path: &'a str,
    pub kind: ChangeKind,
    /// The znode's ACL (its last one, if deleted): events go to those who may READ.
    pub acl: &'a [Acl],
    /// The parent's ACL, for the child watches on it.
    pub parent_acl: &'a [Acl],
    /// The rules of locks: events go to those who may see the znode.
    pub rules: &'a Rules,
}

/// Something happened to a place in a lock's queue, whatever client made it.
#[derive(Clone, Copy, Debug)]
pub struct LockEvent<'a> {
    pub zxid: Zxid,
    /// Time of the command's batch: the leader's clock, milliseconds since 1970.
    pub time_ms: i64,
    /// Path of the lock's znode.
    pub lock: &'a str,
    /// Path of the queue znode.
    pub path: &'a str,
    pub token: FencingToken,
    pub session: SessionId,
    /// The address that its client had when it made the place; empty if unknown.
    pub address: &'a str,
    /// The beginning of the queue znode's data.
    pub label: &'a [u8],
    /// The queue znode's ACL (its last one, if it is gone).
    pub acl: &'a [Acl],
    /// The ACL of the lock's znode.
    pub lock_acl: &'a [Acl],
    pub mode: Mode,
    /// It was made by acquire, so its session is to be told of grants and losses
    /// ([`rowlock_proto::lock::Notice`]).
    pub is_acquired: bool,
    /// Name of the client that took the place away from its session: [`Why::Deleted`], [`Why::Forced`]. Else
    /// empty.
    pub by: &'a str,
    pub kind: LockEventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockEventKind {
    /// It is in the queue.
    Requested {
        /// How many are before it, holders and waiters.
        ahead: u32,
    },
    Granted {
        /// Since the request, milliseconds.
        waited_ms: i64,
    },
    /// It goes on holding in another mode ([`LockEvent::mode`]).
    Converted,
    Gone {
        /// How long it held the lock, milliseconds; `None`: it never did.
        held_ms: Option<i64>,
        /// How long it waited, milliseconds.
        waited_ms: i64,
        why: Why,
    },
    /// It goes on holding, and is asked to give the lock back. [`LockEvent::label`] says by whom and why.
    Asked,
}

/// Why a place in a queue is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Why {
    /// The session released it or left the queue.
    Released,
    SessionClosed,
    SessionExpired,
    /// Another session deleted its znode.
    Deleted,
    /// An operator forced the release.
    Forced,
    /// It was held for longer than it had asked for.
    Revoked,
    /// A superuser ended its session.
    SessionEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionEnd {
    /// The client closed the session.
    Closed,
    Expired,
    /// A superuser ended it. Its client may not know yet, as with one that expires.
    Ended,
}

/// Receives what a command changes, in order, while it is applied. Defined here, implemented above.
pub trait EventSink {
    fn changed(&mut self, change: &Change<'_>);
    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// A session moved to another connection, somewhere in the cluster.
    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// A session ended; the deletions of its ephemerals came before.
    fn session_ended(&mut self, session: SessionId, end: SessionEnd);
    /// A lock's queue changed. Comes behind the znode changes of the same command.
    fn lock(&mut self, event: &LockEvent<'_>) {
        let _ = event;
    }
    /// A holder has a new question: [`LockEventKind::Asked`], which does not come to [`EventSink::lock`].
    fn asked(&mut self, event: &LockEvent<'_>, question: &Question) {
        let _ = (event, question);
    }
}

impl EventSink for () {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
}
