//! The cause of a command's changes, which decides the reasons of ended positions.

use rowlock_proto::acl::Id;
use rowlock_proto::{SessionId, Zxid};

use crate::author::Author;
use crate::outcome::EndReason;

/// Cause of created and deleted znodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause<'a> {
    pub zxid: Zxid,
    pub session: SessionId,
    /// Identities of the client behind the command.
    pub who: &'a [Id],
    /// Reason for the end of positions, if the command determines the reason; otherwise the owner of a
    /// position does.
    pub why: Option<EndReason>,
    /// Limit of positions granted. Each further lock gets a delay that is over at once, and a `LockDue` of
    /// its own grants the lock.
    pub grants_max: usize,
}

impl<'a> Cause<'a> {
    pub(crate) fn new(by: &Author<'a>, why: Option<EndReason>) -> Self {
        Cause { zxid: by.zxid, session: by.session, who: by.who, why, grants_max: usize::MAX }
    }

    /// Makes the cause of a command without a session.
    pub(crate) fn of_the_cluster(zxid: Zxid) -> Self {
        Cause { zxid, session: SessionId::NONE, who: &[], why: None, grants_max: usize::MAX }
    }
}
