//! What touches more than one znode: missing parents, and a whole tree. That is no single step: others may
//! see a part of it, and an interrupted command leaves a part behind.

use futures_util::future::join_all;
use rowlock_client::{Client, Error};
use rowlock_proto::acl::Acl;
use rowlock_proto::{CreateMode, ErrorCode};

/// Deletes on their way at once; they take effect in the order in which they were sent.
const DELETES_AT_ONCE: usize = 64;
/// How often the tree is looked through again for znodes that others have made meanwhile.
const ROUNDS: u32 = 4;

/// Makes the parents of `path` that are missing, without data.
pub async fn make_parents(client: &Client, path: &str) -> Result<(), Error> {
    for (end, _) in path.match_indices('/').skip(1) {
        let made = client.create(&path[..end], None, CreateMode::Persistent, Acl::open()).await;
        match made {
            Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Deletes the znode and everything below it, children first.
pub async fn delete(client: &Client, path: &str) -> Result<(), Error> {
    for _ in 0..ROUNDS {
        match delete_once(client, path).await {
            Err(Error::Rejected(ErrorCode::NotEmpty)) => {}
            ended => return ended,
        }
    }
    Err(Error::Rejected(ErrorCode::NotEmpty))
}

async fn delete_once(client: &Client, path: &str) -> Result<(), Error> {
    // Every path comes after its parent's.
    let mut found = super::ls::tree(client, path).await?;
    found.retain(|below| below != path);
    found.reverse();
    for batch in found.chunks(DELETES_AT_ONCE) {
        for deleted in join_all(batch.iter().map(|path| client.delete(path, None))).await {
            match deleted {
                Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(e) => return Err(e),
            }
        }
    }
    client.delete(path, None).await
}
