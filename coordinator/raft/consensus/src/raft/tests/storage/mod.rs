//! The adapters of log and state machine, on real files.

#![allow(clippy::disallowed_methods)] // the tests damage files behind env's back

mod conformance;
mod restart;
mod state_machine;

use std::path::Path;
use std::sync::Arc;

use rowlock_proto::NodeId;
use rowlock_wal::{DiskFailure, Identity, Opened, Storage};
use tempfile::TempDir;

fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

async fn open(dir: &Path) -> Opened {
    let identity = Identity { cluster: "test".to_owned(), node: NodeId(1) };
    let unexpected = Arc::new(|failure: &DiskFailure| panic!("{failure}"));
    Storage::open(dir, identity, unexpected, Arc::default()).await.expect("opens")
}
