//! Whom the node has met, as the transport asks its data folder.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_proto::NodeId;
use rowlock_transport::{Acquaintances, Unmet};
use rowlock_types::incarnation::Incarnation;
use rowlock_wal::{Folder, Unmet as NotNoted};

/// A data folder.
pub(super) struct Met(pub(super) Folder);

impl Acquaintances for Met {
    fn incarnation(&self) -> Incarnation {
        self.0.incarnation()
    }

    fn meet(&self, node: NodeId, incarnation: Incarnation) -> BoxFuture<'_, Result<(), Unmet>> {
        let meeting = self.0.meet(node, incarnation);
        let told = |unmet| match unmet {
            NotNoted::OtherFolder => Unmet::OtherFolder,
            NotNoted::TooMany => Unmet::TooMany,
            NotNoted::Disk(error) => Unmet::Disk(error.to_string()),
        };
        meeting.map(move |met| met.map_err(told)).boxed()
    }
}
