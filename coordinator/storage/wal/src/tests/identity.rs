//! Ownership of a folder, and the lock of its process.

use super::*;

async fn open_as(dir: &Path, cluster: &str, node: u64) -> Result<Opened, StorageError> {
    let identity = Identity { cluster: cluster.to_owned(), node: NodeId(node) };
    Storage::open_with(dir, identity, Arc::new(|_| {}), Arc::default(), (SMALL, Acknowledge::Flushed)).await
}

#[tokio::test]
async fn another_nodes_folder_is_refused_and_left_alone() {
    let dir = temp();
    let opened = open_as(dir.path(), "test", 1).await.expect("is new");
    opened.log.close().await;
    for (cluster, node) in [("test", 2), ("other", 1)] {
        let text = open_as(dir.path(), cluster, node).await.err().expect("is refused").to_string();
        assert!(
            text.contains("node 1 of cluster \"test\"") && text.contains(&format!("node {node}")),
            "{text}"
        );
    }
    open_as(dir.path(), "test", 1).await.expect("is ours");
}

#[tokio::test]
async fn another_nodes_segments_under_our_identity_are_refused() {
    let (ours, theirs) = (temp(), temp());
    open_as(ours.path(), "test", 1).await.expect("is new").log.close().await;
    open_as(theirs.path(), "test", 2).await.expect("is new").log.close().await;
    std::fs::copy(&segments(theirs.path())[0], &segments(ours.path())[0]).expect("copies");
    assert!(matches!(open_as(ours.path(), "test", 1).await, Err(StorageError::ForeignSegment { .. })));
}

#[tokio::test]
async fn a_second_process_is_kept_out_until_the_first_has_closed() {
    let dir = temp();
    let first = open_as(dir.path(), "test", 1).await.expect("is new");
    assert!(matches!(open_as(dir.path(), "test", 1).await, Err(StorageError::InUse(_))));
    first.log.close().await;
    open_as(dir.path(), "test", 1).await.expect("is free");
}
