//! The sender of a change, as all operations receive it.

use rowlock_proto::acl::Id;
use rowlock_proto::{SessionId, Zxid};

use crate::command::Stamp;
use crate::shared_map::Slot;

/// Sender and zxid of a change.
pub(crate) struct Author<'a> {
    pub zxid: Zxid,
    pub session: SessionId,
    /// Slot of the session; valid until the end of the command.
    pub place: Slot,
    pub who: &'a [Id],
    /// The leader's decisions for the batch.
    pub stamp: Stamp,
}
