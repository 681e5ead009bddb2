//! One ephemeral znode that all clients watch (S2-10, S4-5): the znode's creator holds the lock, and the
//! znode's removal wakes all clients.
//!
//! Claim: a herd: one release wakes all waiters (S2-11), and one of them wins.

use rowlock_world::executor::Simulation;

use super::zk_setting::{self, ZkClient};
use crate::design::{About, Deployment, Design, Doing, Grant, Locker};
use crate::outside_view::{OutsideView, Released, Remark};
use crate::scenario::Scenario;
use crate::wire::Trouble;
use crate::zk::core::{Reply, Request};

pub struct OneZnode;

const PATH: &str = "/locks/stock";

impl Design for OneZnode {
    fn about(&self) -> About {
        About {
            id: "zk-one-znode",
            name: "ZooKeeper, one ephemeral znode",
            source: "tutorials; ZooKeeper's recipes name its herd effect",
            claims: &["S2-10", "S2-11", "S4-5"],
            ..About::of_sessions()
        }
    }

    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
            Scenario::CrashBetween | Scenario::CutBetween | Scenario::PauseBetween => {
                Some(super::ONE_COMMAND)
            }
            _ => None,
        }
    }

    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment {
        zk_setting::build(world, view, |zk| Box::new(HerdLocker { zk }))
    }
}

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
            match self.zk.run(Request::Delete { path: grant.value }).await {
                Ok(Reply::Done) => Released::Freed,
                Ok(_) => Released::WasNotHeld,
                Err(_) => {
                    // The client abandons the session, whose end deletes the znode.
                    self.zk.session = None;
                    Released::Unknown
                }
            }
        })
    }
}
