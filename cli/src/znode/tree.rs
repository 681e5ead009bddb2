//! Operations on several znodes: missing parents, and a whole tree. Not atomic: other clients may see a part
//! of the change, and an interrupted command leaves a part.

use futures_util::future::join_all;
use rowlock_client::{Client, Error};
use rowlock_proto::acl::Acl;
use rowlock_proto::{CreateMode, ErrorCode};

use super::refused::{CallKind, FailedAt};

/// Concurrent deletes, which take effect in the order of sending.
const DELETES_IN_FLIGHT: usize = 64;
/// Passes over the tree, to catch znodes created meanwhile by other clients.
const PASSES: u32 = 4;

/// Creates the missing parents of `path`, without data.
pub async fn create_parents(client: &Client, path: &str) -> Result<(), Error> {
    for (end, _) in path.match_indices('/').skip(1) {
        let made = client.create(&path[..end], None, CreateMode::Persistent, Acl::open()).await;
        match made {
            Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Deletes the znode and everything below, children first.
pub(super) async fn delete(client: &Client, path: &str) -> Result<(), FailedAt> {
    for _ in 0..PASSES {
        match delete_once(client, path).await {
            Err(FailedAt { error: Error::Rejected(ErrorCode::NotEmpty), .. }) => {}
            ended => return ended,
        }
    }
    Err(not_deleted(path, Error::Rejected(ErrorCode::NotEmpty)))
}

async fn delete_once(client: &Client, path: &str) -> Result<(), FailedAt> {
    // Every path follows its parent's path.
    let mut found = super::ls::tree(client, path).await?;
    found.retain(|below| below != path);
    found.reverse();
    for batch in found.chunks(DELETES_IN_FLIGHT) {
        let deleted = join_all(batch.iter().map(|path| client.delete(path, None))).await;
        for (path, deleted) in batch.iter().zip(deleted) {
            match deleted {
                Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(e) => return Err(not_deleted(path, e)),
            }
        }
    }
    client.delete(path, None).await.map_err(|e| not_deleted(path, e))
}

fn not_deleted(path: &str, error: Error) -> FailedAt {
    FailedAt { path: path.to_owned(), kind: CallKind::Delete, error }
}
