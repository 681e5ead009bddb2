//! `SETNX`, then `EXPIRE`, and `DEL` to release, as common before Redis 2.6.12; the notes warn of this design
//! (S1-4, S2-3, S3-1).
//!
//! Claim: a client that dies between the two commands leaves the lock taken for ever.

use rowlock_world::executor::Simulation;

use super::redis_setting::{Plan, RedisSetting};
use crate::design::{About, Contender, Deployment, Design, Doing, Grant, Locker, poll_interval};
use crate::outside_view::{Between, OutsideView, Released, Remark};
use crate::redis::client::{COMMAND_TIMEOUT, Client};
use crate::redis::core::{Answer, Command};
use crate::redis::log::Persistence;
use crate::scenario::Scenario;
use crate::wire::Trouble;
use crate::{LOCK, TTL};

pub struct SetnxExpire;

impl Design for SetnxExpire {
    fn about(&self) -> About {
        About {
            id: "setnx-expire",
            name: "SETNX + EXPIRE, DEL",
            source: "tutorials from before Redis 2.6.12",
            claims: &["S1-4", "S2-3", "S3-1"],
            ..About::default()
        }
    }

    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
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
            Box::new(SetnxLocker { me: me.clone(), redis })
        };
        Deployment { servers: Box::new(servers), locker: Box::new(locker) }
    }
}

struct SetnxLocker {
    me: Contender,
    redis: Client,
}

impl Locker for SetnxLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            loop {
                let value = self.me.unique();
                let set = Command::SetNx { key: LOCK.to_owned(), value: value.clone() };
                if self.redis.run(set).await? == Answer::Number(1) {
                    self.me.between(Between::Acquire).await;
                    let expire = Command::Expire { key: LOCK.to_owned(), ttl_ms: TTL.as_millis() as i64 };
                    self.redis.run(expire).await?;
                    return Ok(Grant { token: None, value });
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
