//! The transport's record of incarnations, stored in the data folder, and of the versions that other nodes
//! reported.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::version;
use rowlock_state::version::Versions;
use rowlock_transport::{KnownIncarnations, NotRecorded};
use rowlock_wal::{Folder, NotRecorded as NotOnDisk};

use super::releases::Releases;

/// Data folder, and the versions of the nodes.
pub(super) struct FolderIncarnations(pub(super) Folder, pub(super) Releases);

impl KnownIncarnations for FolderIncarnations {
    fn incarnation(&self) -> Incarnation {
        self.0.incarnation()
    }

    fn cluster(&self) -> Option<ClusterId> {
        self.0.cluster()
    }

    fn versions(&self) -> Versions {
        let left_behind = self.0.version().map_or(version::FIRST, |version| version.number);
        self.1.ours().clone().since(left_behind)
    }

    fn heard(&self, node: NodeId, versions: Versions) {
        self.1.record(node, versions);
    }

    fn record(&self, node: NodeId, incarnation: Incarnation) -> BoxFuture<'_, Result<(), NotRecorded>> {
        let recording = self.0.record(node, incarnation);
        let told = |cause| match cause {
            NotOnDisk::OtherFolder => NotRecorded::OtherFolder,
            NotOnDisk::TooMany => NotRecorded::TooMany,
            NotOnDisk::Disk(error) => NotRecorded::Disk(error.to_string()),
        };
        recording.map(move |recorded| recorded.map_err(told)).boxed()
    }
}
