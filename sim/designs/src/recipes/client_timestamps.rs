//! `SETNX` with the time of expiry as value, by the client's clock. A client that finds a passed time takes
//! over with `GETSET`; `DEL` releases. Published in the documentation of `SETNX` and in many tutorials
//! (S1-5).
//!
//! Claims: the design needs synchronized clocks; losers of a race overwrite the winner's time; the lock has
//! no owner, so any client can unlock.

use rowlock_env::time;
use rowlock_world::executor::Simulation;

use super::redis_setting::{Plan, RedisSetting};
use crate::design::{About, Contender, Deployment, Design, Doing, Grant, Locker, WhoseClock, poll_interval};
use crate::outside_view::{OutsideView, Released, Remark};
use crate::redis::client::{COMMAND_TIMEOUT, Client};
use crate::redis::core::{Answer, Command};
use crate::redis::log::Persistence;
use crate::scenario::Scenario;
use crate::wire::Trouble;
use crate::{LOCK, TTL};

pub struct ClientTimestamps;

impl Design for ClientTimestamps {
    fn about(&self) -> About {
        About {
            id: "client-timestamps",
            name: "SETNX with client timestamps, GETSET, DEL",
            source: "Redis's page on SETNX (\"design pattern\", since discouraged)",
            claims: &["S1-5"],
            clock: WhoseClock::Clients,
            ..About::default()
        }
    }

    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
            Scenario::CrashBetween | Scenario::CutBetween => Some("a free lock is taken by one command"),
            Scenario::PauseBetween => Some("the release is one command"),
            Scenario::HolderCutOff => Some(super::NO_LONG_JOBS),
            _ => None,
        }
    }

    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment {
        let plan = Plan { servers: 1, is_replicated: false, persistence: Persistence::None, min_replicas: 0 };
        let servers = RedisSetting::build(world, view, plan);
        let place = servers.place();
        let locker = move |me: &Contender| -> Box<dyn Locker> {
            let redis = Client::new(place.clone(), COMMAND_TIMEOUT, me.view.meter().clone());
            Box::new(TimestampLocker { me: me.clone(), redis })
        };
        Deployment { servers: Box::new(servers), locker: Box::new(locker) }
    }
}

struct TimestampLocker {
    me: Contender,
    redis: Client,
}

fn expiry() -> String {
    (time::wall_ms() + TTL.as_millis() as i64 + 1).to_string()
}

fn has_passed(expiry: &str) -> bool {
    expiry.parse::<i64>().is_ok_and(|at| at < time::wall_ms())
}

impl TimestampLocker {
    async fn try_once(&mut self) -> Result<Option<Grant>, Trouble> {
        let key = || LOCK.to_owned();
        let value = expiry();
        let set = self.redis.run(Command::SetNx { key: key(), value: value.clone() }).await?;
        if set == Answer::Number(1) {
            return Ok(Some(Grant { token: None, value }));
        }
        let Answer::Text(current) = self.redis.run(Command::Get { key: key() }).await? else {
            return Ok(None);
        };
        if !has_passed(&current) {
            return Ok(None);
        }
        let value = expiry();
        match self.redis.run(Command::GetSet { key: key(), value: value.clone() }).await? {
            Answer::Text(before) if before != current => Ok(None), // and the winner's time is overwritten
            _ => Ok(Some(Grant { token: None, value })),
        }
    }
}

impl Locker for TimestampLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            loop {
                if let Some(grant) = self.try_once().await? {
                    return Ok(grant);
                }
                self.me.view.remark(Remark::Denied);
                poll_interval().await;
            }
        })
    }

    fn unlock(&mut self, _: Grant) -> Doing<'_, Released> {
        Box::pin(async {
            match self.redis.run(Command::Del { key: LOCK.to_owned() }).await {
                Ok(Answer::Number(1)) => Released::Freed,
                Ok(_) => Released::WasNotHeld,
                Err(_) => Released::Unknown,
            }
        })
    }
}
