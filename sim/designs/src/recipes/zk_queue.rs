//! ZooKeeper's lock recipe done right (S2-12 to S2-15, S4-6), as in Curator: an ephemeral, sequential znode
//! under one parent per lock, with a random part by which a client finds its znode after a lost reply. The
//! lowest znode holds; each other client watches its predecessor, and lists the queue again after every
//! wake-up. A holder without an answer of the service for two thirds of the session timeout considers the
//! lock lost.
//!
//! Claims: order of creation is order of grants (S2-15); one release wakes one client (S2-12); a predecessor
//! that dies while waiting does no harm (S2-14); no double grant (S2-9); ZooKeeper's lock is sturdier than
//! Redis's (S4-9); a dead client's znode goes at once (S4-8, contradicted by E7).

use std::time::Duration;

use rowlock_env::time;
use rowlock_world::executor::Simulation;

use super::machines::{ZkClient, zookeeper};
use crate::design::{Build, Deployment, Doing, Grant, Locker, fate};
use crate::outside_view::{Between, OutsideView, Released, Remark};
use crate::wire::Trouble;
use crate::zk::core::{Reply, Request};
use crate::zk::session::Session;

/// Parent of one lock: numbers of different locks never meet (E4).
pub(super) const PARENT: &str = "/locks/stock";
const RETRY_AFTER: Duration = Duration::from_millis(200);

pub(super) const MODELS: [(&str, Build); 2] = [("zk-queue", build), ("zk-queue-fenced", build)];

fn build(world: &Simulation, view: &OutsideView) -> Deployment {
    zookeeper(world, view, |zk| Box::new(QueueLocker { zk, place: None }))
}

#[derive(Debug)]
struct Place {
    /// Random part by which the client finds its znode after a lost reply.
    guid: String,
    /// Name of the znode, once known.
    name: Option<String>,
}

struct QueueLocker {
    zk: ZkClient,
    place: Option<Place>,
}

/// Returns the number at the end of a name.
pub(super) fn number_of(name: &str) -> u64 {
    name.rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX)
}

/// Returns all names, lowest number first.
pub(super) async fn list(session: &Session) -> Result<Vec<String>, Trouble> {
    match session.run(Request::Children { parent: PARENT.to_owned() }).await? {
        Reply::Children(mut names) => {
            names.sort_by_key(|name| number_of(name));
            Ok(names)
        }
        _ => Err(Trouble::NoConnection),
    }
}

impl QueueLocker {
    /// Creates a znode in the queue, or finds the znode of an earlier try. Returns the znode's name.
    async fn take_place(&mut self) -> Result<String, Trouble> {
        let is_retry = self.place.is_some();
        let me = self.zk.me.clone();
        let fresh = || Place { guid: me.unique().replace('-', "."), name: None };
        let place = self.place.get_or_insert_with(fresh);
        if let Some(name) = &place.name {
            return Ok(name.clone());
        }
        let guid = place.guid.clone();
        let session = self.zk.session().await?;
        let before = if is_retry { list(session).await? } else { Vec::new() };
        let name = match before.into_iter().find(|name| name.starts_with(&guid)) {
            Some(name) => name,
            None => {
                let path = format!("{PARENT}/{guid}-lock-");
                match session.run(Request::Create { path, is_sequential: true }).await? {
                    Reply::Created(path, _) => path.rsplit('/').next().unwrap_or_default().to_owned(),
                    _ => return Err(Trouble::NoConnection),
                }
            }
        };
        self.place = Some(Place { guid, name: Some(name.clone()) });
        Ok(name)
    }

    /// Waits for the grant. `None`: the znode is gone.
    async fn wait_for_turn(&self, mine: &str) -> Result<Option<Grant>, Trouble> {
        let session = self.zk.session.as_ref().ok_or(Trouble::NoConnection)?;
        let mut woken = 0;
        loop {
            let names = list(session).await?;
            let Some(position) = names.iter().position(|name| name == mine) else { return Ok(None) };
            if position == 0 && session.is_safe() {
                let value = format!("{PARENT}/{mine}");
                return Ok(Some(Grant { token: Some(number_of(mine)), value }));
            }
            let Some(before) = position.checked_sub(1).map(|i| format!("{PARENT}/{}", names[i])) else {
                return Err(Trouble::NoConnection);
            };
            if woken > 0 {
                // The predecessor waited only, and is gone: a wake-up without a grant.
                self.zk.me.view.remark(Remark::Denied);
            }
            let gone = session.interest(&before);
            if session.run(Request::Exists { path: before, watch: true }).await? == Reply::Exists {
                gone.await.map_err(|_| Trouble::NoConnection)?;
                woken += 1;
            }
        }
    }
}

impl Locker for QueueLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            if self.zk.session.as_ref().is_none_or(Session::is_expired) {
                self.place = None; // it went with the session
            }
            self.zk.session().await?;
            let mine = self.take_place().await?;
            self.zk.me.between(Between::Acquire).await;
            let grant = self.wait_for_turn(&mine).await?;
            if grant.is_none() {
                self.place = None;
            }
            grant.ok_or(Trouble::NoConnection)
        })
    }

    fn lost<'a>(&'a self, _: &'a Grant) -> Doing<'a, ()> {
        Box::pin(async {
            if let Some(session) = &self.zk.session {
                session.unsafe_now().await;
            }
        })
    }

    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released> {
        Box::pin(async move {
            self.place = None;
            loop {
                match self.zk.delete(grant.value.clone()).await {
                    Ok(was_held) => return fate(Ok(was_held)),
                    // Repeats the delete until an answer: all other clients would wait for a remaining znode.
                    Err(_) if self.zk.session.as_ref().is_some_and(Session::is_expired) => {
                        return Released::WasNotHeld;
                    }
                    Err(_) => time::sleep(RETRY_AFTER).await,
                }
            }
        })
    }
}
