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

use super::redis_setting::{Plan, RedisSetting};
use crate::design::{About, Contender, Deployment, Design, Doing, Grant, Locker};
use crate::outside_view::{Between, OutsideView, Released, Remark};
use crate::redis::client::{COMMAND_TIMEOUT, Client, Where};
use crate::redis::core::{Answer, Command, channel_of};
use crate::redis::log::Persistence;
use crate::scenario::Scenario;
use crate::wire::Trouble;
use crate::{LOCK, TTL};

/// Replicas of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    None,
    /// Two replicas and a monitor.
    Asynchronous,
    /// Three replicas, and the primary refuses writes unless two have reported within 10 s.
    MinReplicas,
    /// Like `Asynchronous`, and a grant counts only after one replica has acknowledged the grant.
    Wait,
    /// Like `Wait`, with both replicas.
    WaitForAll,
}

pub struct Redisson {
    pub replication: Replication,
}

impl Redisson {
    /// Returns the number of replicas that must acknowledge a grant.
    fn waits_for(&self) -> usize {
        match self.replication {
            Replication::Wait => 1,
            Replication::WaitForAll => 2,
            _ => 0,
        }
    }
}

impl Design for Redisson {
    fn about(&self) -> About {
        let (id, name, claims): (_, _, &[_]) = match self.replication {
            Replication::None => {
                ("redisson", "Redisson, one server", &["S0-8", "S0-10", "S3-7", "S3-13", "E9", "E10"])
            }
            Replication::Asynchronous => {
                ("redisson-replicas", "Redisson, replicas and failover", &["S0-12", "S2-7", "S4-3", "E9"])
            }
            Replication::MinReplicas => {
                ("redisson-min-replicas", "Redisson, min-replicas-to-write 2", &["S2-8", "E8"])
            }
            Replication::Wait => ("redisson-wait", "Redisson, WAIT 1", &["E8"]),
            Replication::WaitForAll => ("redisson-wait-all", "Redisson, WAIT for all replicas", &["E8"]),
        };
        About { id, name, claims, source: "Redisson's RLock", keeps_alive: true, ..About::default() }
    }

    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
            Scenario::CrashBetween | Scenario::CutBetween if self.waits_for() == 0 => {
                Some(super::ONE_COMMAND)
            }
            Scenario::PauseBetween => Some("the release is one command"),
            _ => None,
        }
    }

    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment {
        let is_replicated = self.replication != Replication::None;
        let plan = Plan {
            servers: match self.replication {
                Replication::None => 1,
                Replication::Asynchronous | Replication::Wait | Replication::WaitForAll => 3,
                Replication::MinReplicas => 4,
            },
            is_replicated,
            persistence: Persistence::EverySecond,
            min_replicas: if self.replication == Replication::MinReplicas { 2 } else { 0 },
        };
        let servers = RedisSetting::build(world, view, plan);
        let (place, waits) = (servers.place(), self.waits_for());
        let locker = move |me: &Contender| -> Box<dyn Locker> {
            let client = || Client::new(place.clone(), COMMAND_TIMEOUT, me.view.meter().clone());
            Box::new(RedissonLocker {
                owner: me.unique(),
                commands: client(),
                messages: client(),
                is_subscribed: false,
                watchdog: Mutex::new(None),
                place: place.clone(),
                me: me.clone(),
                waits,
            })
        };
        Deployment { servers: Box::new(servers), locker: Box::new(locker) }
    }
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

fn ttl_ms() -> i64 {
    TTL.as_millis() as i64
}

impl Drop for RedissonLocker {
    fn drop(&mut self) {
        self.stop_watchdog();
    }
}

impl RedissonLocker {
    /// Tries to lock. `None` means success, else the result is the rest of the holder's lease.
    async fn try_once(&mut self) -> Result<Option<Duration>, Trouble> {
        let lock =
            Command::RedissonLock { key: LOCK.to_owned(), owner: self.owner.clone(), ttl_ms: ttl_ms() };
        match self.commands.run(lock).await? {
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
        let unlock =
            Command::RedissonUnlock { key: LOCK.to_owned(), owner: self.owner.clone(), ttl_ms: ttl_ms() };
        self.commands.run(unlock).await
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
        let mut redis = Client::new(self.place.clone(), COMMAND_TIMEOUT, self.me.view.meter().clone());
        let (owner, view) = (self.owner.clone(), self.me.view.clone());
        let watchdog = task::spawn("redisson.watchdog", async move {
            loop {
                time::sleep(TTL / 3).await;
                let renew =
                    Command::RedissonRenew { key: LOCK.to_owned(), owner: owner.clone(), ttl_ms: ttl_ms() };
                match redis.run(renew).await {
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
            match answer {
                Ok(Answer::Number(1)) => Released::Freed,
                Ok(_) => Released::WasNotHeld,
                Err(_) => Released::Unknown,
            }
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
