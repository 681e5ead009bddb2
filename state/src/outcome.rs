//! What applying a command gives: an answer for its sender, and events for everybody who watches.

use rowlock_proto::acl::Acl;
use rowlock_proto::response::OpResult;
use rowlock_proto::{ErrorCode, SessionId, Stat, Zxid};

use crate::command::{Attachment, Origin};

/// The answer to one proposal, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Whose proposal it was.
    pub origin: Origin,
    /// The last zxid after this command (its own, where it took one).
    pub zxid: Zxid,
    /// What it did, or why it was refused.
    pub result: Result<Outcome, ErrorCode>,
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Noop, delete, close, expire, reap, configure.
    Done,
    /// `CreateSession`, `Attach`.
    Session {
        /// The session.
        session: SessionId,
        /// Its proof.
        password: [u8; 16],
        /// The attachment for this connection's proposals.
        attachment: Attachment,
        /// The timeout in force.
        timeout_ms: u32,
    },
    /// create.
    Created {
        /// The full path, with the sequence number where there is one.
        path: String,
        /// The new znode's.
        stat: Stat,
    },
    /// setData, setACL.
    Stat(Stat),
    /// multi, also one that failed (then all results are `OpResult::Error` and nothing was changed).
    Multi(Vec<OpResult>),
}

/// What happened to a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It exists now; its parent's children changed.
    Created,
    /// It is gone; its parent's children changed.
    Deleted,
    /// It has new data.
    DataChanged,
}

/// A change of one znode. Which watches it fires is the watch table's business.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Of the command.
    pub zxid: Zxid,
    /// Full path of the znode.
    pub path: &'a str,
    /// What happened.
    pub kind: ChangeKind,
    /// The znode's ACL (its last one, if deleted): events go to those who may READ.
    pub acl: &'a [Acl],
    /// The parent's ACL, for the child watches on it.
    pub parent_acl: &'a [Acl],
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// Its timeout passed.
    Expired,
}

/// Receives what a command changes, in order, while it is applied. Defined here, implemented above.
pub trait EventSink {
    /// A znode changed.
    fn changed(&mut self, change: &Change<'_>);
    /// A session was opened.
    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// A session moved to another connection, somewhere in the cluster.
    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// A session ended; the deletions of its ephemerals came before.
    fn session_ended(&mut self, session: SessionId, end: SessionEnd);
}
