//! Operations on several znodes: missing parents, and a whole tree. Not atomic: other clients may see a part
//! of the change, and an interrupted command leaves a part.

use futures_util::future::join_all;
use rowlock_client::{Client, Error};
use rowlock_proto::acl::Acl;
use rowlock_proto::{CreateMode, ErrorCode};

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
pub async fn delete(client: &Client, path: &str) -> Result<(), Error> {
    for _ in 0..PASSES {
        match delete_once(client, path).await {
            Err(Error::Rejected(ErrorCode::NotEmpty)) => {}
            ended => return ended,
        }
    }
    Err(Error::Rejected(ErrorCode::NotEmpty))
}

async fn delete_once(client: &Client, path: &str) -> Result<(), Error> {
    // Every path follows its parent's path.
    let mut found = super::ls::tree(client, path).await?;
    found.retain(|below| below != path);
    found.reverse();
    for batch in found.chunks(DELETES_IN_FLIGHT) {
        for deleted in join_all(batch.iter().map(|path| client.delete(path, None))).await {
            match deleted {
                Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(e) => return Err(e),
            }
        }
    }
    client.delete(path, None).await
}
