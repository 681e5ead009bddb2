//! One ephemeral znode that all clients watch (S2-10, S4-5): the znode's creator holds the lock, and the
//! znode's removal wakes all clients.
//!
//! Claim: a herd: one release wakes all waiters (S2-11), and one of them wins.

use super::machines::{ZkClient, zookeeper};
use crate::design::{Build, Doing, Grant, Locker, fate};
use crate::outside_view::{Released, Remark};
use crate::wire::Trouble;
use crate::zk::core::{Reply, Request};

const PATH: &str = "/locks/stock";

pub(super) const MODELS: [(&str, Build); 1] =
    [("zk-one-znode", |world, view| zookeeper(world, view, |zk| Box::new(HerdLocker { zk })))];

struct HerdLocker {
    zk: ZkClient,
}

impl Locker for HerdLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            let view = self.zk.me.view.clone();
            let session = self.zk.session().await?;
            loop {
                let create = Request::Create { path: PATH.to_owned(), is_sequential: false };
                match session.run(create).await? {
                    // The zxid of the znode's creation rises from grant to grant and serves as the token.
                    Reply::Created(value, czxid) => return Ok(Grant { token: Some(czxid), value }),
                    Reply::NodeExists => view.remark(Remark::Denied),
                    _ => return Err(Trouble::NoConnection),
                }
                let gone = session.interest(PATH);
                let exists = Request::Exists { path: PATH.to_owned(), watch: true };
                if session.run(exists).await? == Reply::Exists {
                    gone.await.map_err(|_| Trouble::NoConnection)?;
                }
            }
        })
    }

    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released> {
        Box::pin(async move {
            let deleted = self.zk.delete(grant.value).await;
            if deleted.is_err() {
                // The client abandons the session, whose end deletes the znode.
                self.zk.session = None;
            }
            fate(deleted)
        })
    }
}
