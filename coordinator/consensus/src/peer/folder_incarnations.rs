//! Answers the transport from the data folder: by which incarnation another node is known.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_transport::{KnownIncarnations, NotRecorded};
use rowlock_types::incarnation::Incarnation;
use rowlock_wal::{Folder, NotRecorded as NotOnDisk};

/// A data folder.
pub(super) struct FolderIncarnations(pub(super) Folder);

impl KnownIncarnations for FolderIncarnations {
    fn incarnation(&self) -> Incarnation {
        self.0.incarnation()
    }

    fn cluster(&self) -> Option<ClusterId> {
        self.0.cluster()
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
