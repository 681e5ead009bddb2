//! Redisson's `RLock`: a hash with owner and reentrancy count. A watchdog renews the lease at a third of its
//! time. Losers subscribe and wait for the release or the rest of the lease (S0-6 to S0-9, S3-5 to S3-14).
//! Variants: one server; a primary with two replicas and a monitor; `min-replicas-to-write 2`,
//! `min-replicas-max-lag 10` (S2-8) with a third replica, so that the primary still accepts writes after a
//! failover; `WAIT 1` after each grant; `WAIT` for all replicas, the default since Redisson 3.17
//! (`checkLockSyncedSlaves`; "only 1 of 2 slaves were synced").
//!
//! Claims: asynchronous failover grants the lock twice (S0-12, S2-7, S4-3) and the notes offer min-replicas
//! as a remedy; no polling (S3-7); the old watchdog still believes that its client holds the lock (S0-12,
//! contradicted by E9); a release of a vanished lock reports success (S3-13).

use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_world::executor::Simulation;

use super::machines::{Plan, redis, redis_client};
use crate::design::{Build, Contender, Deployment, Doing, Grant, Locker, fate};
use crate::outside_view::{Between, OutsideView, Released, Remark};
use crate::redis::client::{COMMAND_TIMEOUT, Client, Where};
use crate::redis::core::{Answer, Command, channel_of};
use crate::redis::log::Persistence;
use crate::wire::Trouble;
use crate::{LOCK, TTL};

/// Redisson's own setup here: `appendfsync everysec`, and two replicas with a monitor or none.
const fn plan(servers: usize, min_replicas: usize) -> Plan {
    Plan { servers, is_replicated: servers > 1, persistence: Persistence::EverySecond, min_replicas }
}

pub(super) const MODELS: [(&str, Build); 5] = [
    ("redisson", |world, view| build(world, view, plan(1, 0), 0)),
    ("redisson-replicas", |world, view| build(world, view, plan(3, 0), 0)),
    ("redisson-min-replicas", |world, view| build(world, view, plan(4, 2), 0)),
    ("redisson-wait", |world, view| build(world, view, plan(3, 0), 1)),
    ("redisson-wait-all", |world, view| build(world, view, plan(3, 0), 2)),
];

/// Sets up a design that waits for `waits` replicas after each grant.
fn build(world: &Simulation, view: &OutsideView, plan: Plan, waits: usize) -> Deployment {
    redis(world, view, plan, move |me, places| {
        Box::new(RedissonLocker {
            owner: me.unique(),
            commands: redis_client(me, &places[0]),
            messages: redis_client(me, &places[0]),
            is_subscribed: false,
            watchdog: Mutex::new(None),
            place: places[0].clone(),
            me: me.clone(),
            waits,
        })
    })
}

struct RedissonLocker {
    me: Contender,
    place: Where,
    /// UUID of the process and thread id.
    owner: String,
    commands: Client,
    messages: Client,
    is_subscribed: bool,
    watchdog: Mutex<Option<Task<()>>>,
    /// Number of replicas to wait for.
    waits: usize,
}

impl Drop for RedissonLocker {
    fn drop(&mut self) {
        self.stop_watchdog();
    }
}

impl RedissonLocker {
    /// Tries to lock. `None` means success, else the result is the rest of the holder's lease.
    async fn try_once(&mut self) -> Result<Option<Duration>, Trouble> {
        match self.commands.run(Command::redisson_lock(&self.owner)).await? {
            Answer::Nil => {}
            Answer::Number(left) => return Ok(Some(Duration::from_millis(left.max(0).unsigned_abs()))),
            _ => return Err(Trouble::NoConnection),
        }
        if self.waits > 0 {
            self.me.between(Between::Acquire).await;
            let reached = self.commands.wait(self.waits, COMMAND_TIMEOUT / 2).await;
            if !reached.is_ok_and(|replicas| replicas >= self.waits) {
                self.unlock_once().await?;
                return Err(Trouble::Unanswered);
            }
        }
        Ok(None)
    }

    async fn unlock_once(&mut self) -> Result<Answer, Trouble> {
        self.commands.run(Command::redisson_unlock(&self.owner)).await
    }

    /// Sleeps until a message arrives or the rest of the holder's lease is over.
    async fn wait_for_message(&mut self, left: Duration) -> Result<(), Trouble> {
        let heard = match time::timeout(left, self.messages.next_message()).await {
            Ok(heard) => heard,
            // After silence, checks the subscription. (Redisson pings its connections every 30 s.)
            Err(time::Elapsed) => self.messages.ping().await,
        };
        self.is_subscribed = heard.is_ok();
        heard
    }

    fn start_watchdog(&self) {
        let mut redis = redis_client(&self.me, &self.place);
        let (owner, view) = (self.owner.clone(), self.me.view.clone());
        let watchdog = task::spawn("redisson.watchdog", async move {
            loop {
                time::sleep(TTL / 3).await;
                match redis.run(Command::redisson_renew(&owner)).await {
                    Ok(Answer::Number(1)) => view.remark(Remark::Renewed),
                    // The lock has another owner, or the server failed: renewal stops without notice to the
                    // application (S3-10, E9).
                    Ok(_) => return view.remark(Remark::RenewalRefused),
                    Err(_) => return,
                }
            }
        });
        if let Some(old) = self.watchdog.lock().replace(watchdog) {
            old.abort();
        }
    }

    fn stop_watchdog(&self) {
        if let Some(watchdog) = self.watchdog.lock().take() {
            watchdog.abort();
        }
    }
}

impl Locker for RedissonLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            loop {
                let Some(mut left) = self.try_once().await? else { break };
                self.me.view.remark(Remark::Denied);
                if !self.is_subscribed {
                    self.messages.subscribe(&channel_of(LOCK)).await?;
                    self.is_subscribed = true;
                    // A release before the subscription would be missed, so the client tries once more.
                    match self.try_once().await? {
                        None => break,
                        Some(rest) => left = rest,
                    }
                }
                self.wait_for_message(left).await?;
            }
            self.start_watchdog();
            Ok(Grant { token: None, value: self.owner.clone() })
        })
    }

    fn unlock(&mut self, _: Grant) -> Doing<'_, Released> {
        Box::pin(async {
            let answer = self.unlock_once().await;
            self.stop_watchdog();
            fate(answer.map(|answer| answer == Answer::Number(1)))
        })
    }
}

/// Tests the scripts' count alone: the workload never locks twice.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_renews_well_before_the_lease_ends() {
        assert!(TTL / 3 + COMMAND_TIMEOUT < TTL);
    }
}
