//! ZooKeeper's lock recipe as often written, with the mistakes of the classes in the notes (S4, E1 to E6).
//!
//! As printed: the code ignores the event of a removal, because it returns early for every event of a
//! connected client (E1), so each waiter sleeps its whole timeout. Then the waiter takes the lock without a
//! check (E2). An error counts as "busy" and the code creates a second znode (E6). Release deletes
//! unconditionally (E5). The two other variants repair E1 only: one takes a wake-up for a grant (E2); the
//! other sets the watch before its wait begins (E3), but lists the queue again.

use std::time::Duration;

use rowlock_env::time;
use rowlock_world::executor::Simulation;

use super::machines::{ZkClient, zookeeper};
use super::zk_queue::{PARENT, list};
use crate::TTL;
use crate::design::{Build, Deployment, Doing, Grant, Locker, fate};
use crate::outside_view::{Between, OutsideView, Released, Remark};
use crate::wire::Trouble;
use crate::zk::core::{Reply, Request};
use crate::zk::session::Session;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// E1, E2, E5, E6.
    AsPrinted,
    /// A wake-up, or a timeout, counts as a grant (E2).
    WakeIsGrant,
    /// A watch fires before the client waits for the event, and the event is lost (E3).
    WatchBeforeLatch,
}

/// Time between the reply to `exists` and the next line of the program, in which the event thread may run.
const NEXT_LINE: Duration = Duration::from_millis(1);

pub(super) const MODELS: [(&str, Build); 3] = [
    ("zk-queue-as-printed", |world, view| build(world, view, Flaw::AsPrinted)),
    ("zk-queue-wake-is-grant", |world, view| build(world, view, Flaw::WakeIsGrant)),
    ("zk-queue-watch-before-latch", |world, view| build(world, view, Flaw::WatchBeforeLatch)),
];

fn build(world: &Simulation, view: &OutsideView, flaw: Flaw) -> Deployment {
    zookeeper(world, view, move |zk| Box::new(WrongLocker { zk, flaw }))
}

struct WrongLocker {
    zk: ZkClient,
    flaw: Flaw,
}

impl WrongLocker {
    /// Creates a znode and waits once. The caller starts again after any error, and the znode stays (E6).
    async fn try_once(&mut self) -> Result<Grant, Trouble> {
        let (me, flaw) = (self.zk.me.clone(), self.flaw);
        let session = self.zk.session().await?;
        let path = format!("{PARENT}/lock-");
        let Reply::Created(path, _) = session.run(Request::Create { path, is_sequential: true }).await?
        else {
            return Err(Trouble::NoConnection);
        };
        me.between(Between::Acquire).await;
        let grant = Grant { token: Some(super::zk_queue::number_of(&path)), value: path };
        loop {
            let names = list(session).await?;
            let position = names.iter().position(|name| grant.value.ends_with(name.as_str()));
            let Some(before) = position.ok_or(Trouble::NoConnection)?.checked_sub(1) else {
                return Ok(grant);
            };
            let is_over = wait(session, &format!("{PARENT}/{}", names[before]), flaw).await?;
            if is_over && flaw != Flaw::WatchBeforeLatch {
                return Ok(grant); // E2
            }
            me.view.remark(Remark::Denied);
        }
    }
}

/// Mirrors the notes' `waitForLock`. Returns `false` if the predecessor was gone already.
async fn wait(session: &Session, before: &str, flaw: Flaw) -> Result<bool, Trouble> {
    let exists = Request::Exists { path: before.to_owned(), watch: true };
    match flaw {
        Flaw::AsPrinted => {
            if session.run(exists).await? != Reply::Exists {
                return Ok(true);
            }
            time::sleep(TTL).await; // E1: nothing ever ends this but the timeout
        }
        Flaw::WakeIsGrant => {
            let gone = session.interest(before);
            if session.run(exists).await? == Reply::Exists {
                // A timeout also counts as a grant.
                let _ = time::timeout(TTL, gone).await;
            }
        }
        Flaw::WatchBeforeLatch => {
            if session.run(exists).await? != Reply::Exists {
                return Ok(false);
            }
            time::sleep(NEXT_LINE).await;
            session.interest(before).await.map_err(|_| Trouble::NoConnection)?;
        }
    }
    Ok(true)
}

impl Locker for WrongLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(self.try_once())
    }

    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released> {
        Box::pin(async move {
            // After an error the znode stays.
            fate(self.zk.delete(grant.value).await)
        })
    }
}
