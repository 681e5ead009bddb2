//! `SET key random NX PX ttl` on one server (S0-1, S1-3), released in three ways: a bare `DEL` (S1-7), `GET`
//! then `DEL` (S1-8), and the script that compares and deletes (S0-4, S1-6, S4-2), which Redis's
//! documentation recommends.
//!
//! Claims: the bare `DEL` frees another client's lock; so does `GET` then `DEL` if the lock expires in
//! between; the script never does. No variant is fault tolerant (S1-9).

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

/// Way of the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Del,
    GetThenDel,
    CompareAndDelete,
    /// The script, on a server with `appendfsync always`.
    CompareAndDeleteAlways,
}

pub struct SetNxPx {
    pub release: Release,
}

impl Design for SetNxPx {
    fn about(&self) -> About {
        let (id, name, source, claims): (_, _, _, &[_]) = match self.release {
            Release::Del => {
                ("set-nx-px-del", "SET NX PX, DEL", "tutorials (Jedis)", &["S1-7", "S2-4", "S3-3"])
            }
            Release::GetThenDel => {
                ("set-nx-px-get-del", "SET NX PX, GET then DEL", "tutorials (Jedis)", &["S1-8", "S2-5"])
            }
            Release::CompareAndDelete => (
                "set-nx-px-script",
                "SET NX PX, compare-and-delete",
                "Redis's page on SET, for one server",
                &["S0-4", "S1-6", "S4-2", "S1-9"],
            ),
            Release::CompareAndDeleteAlways => (
                "set-nx-px-script-fsync",
                "SET NX PX, compare-and-delete, fsync always",
                "the same with Redis's strictest persistence",
                &["S0-4", "S1-6", "S4-2", "S1-9"],
            ),
        };
        About { id, name, source, claims, ..About::default() }
    }

    fn not_applicable(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
            Scenario::CrashBetween | Scenario::CutBetween => Some("acquire is one command"),
            Scenario::PauseBetween if self.release != Release::GetThenDel => Some(super::ONE_COMMAND),
            Scenario::HolderCutOff => Some(super::NO_LONG_JOBS),
            _ => None,
        }
    }

    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment {
        let persistence = match self.release {
            Release::CompareAndDeleteAlways => Persistence::Always,
            _ => Persistence::None, // Redis's own default: `appendonly no`
        };
        let plan = Plan { servers: 1, is_replicated: false, persistence, min_replicas: 0 };
        let servers = RedisSetting::build(world, view, plan);
        let (place, release) = (servers.place(), self.release);
        let locker = move |me: &Contender| -> Box<dyn Locker> {
            let redis = Client::new(place.clone(), COMMAND_TIMEOUT, me.view.meter().clone());
            Box::new(SetLocker { me: me.clone(), redis, release })
        };
        Deployment { servers: Box::new(servers), locker: Box::new(locker) }
    }
}

struct SetLocker {
    me: Contender,
    redis: Client,
    release: Release,
}

impl SetLocker {
    async fn try_release(&mut self, value: String) -> Result<Answer, Trouble> {
        let key = LOCK.to_owned();
        match self.release {
            Release::Del => self.redis.run(Command::Del { key }).await,
            Release::CompareAndDelete | Release::CompareAndDeleteAlways => {
                self.redis.run(Command::CompareAndDelete { key, value }).await
            }
            Release::GetThenDel => {
                if self.redis.run(Command::Get { key: key.clone() }).await? != Answer::Text(value) {
                    return Ok(Answer::Number(0));
                }
                self.me.between(Between::Release).await;
                self.redis.run(Command::Del { key }).await
            }
        }
    }
}

impl Locker for SetLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            loop {
                let value = self.me.unique();
                let set = Command::SetNxPx {
                    key: LOCK.to_owned(),
                    value: value.clone(),
                    ttl_ms: TTL.as_millis() as i64,
                };
                if self.redis.run(set).await? == Answer::Ok {
                    return Ok(Grant { token: None, value });
                }
                self.me.view.remark(Remark::Denied);
                poll_interval().await;
            }
        })
    }

    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released> {
        Box::pin(async {
            match self.try_release(grant.value).await {
                Ok(Answer::Number(1)) => Released::Freed,
                Ok(_) => Released::WasNotHeld,
                Err(_) => Released::Unknown,
            }
        })
    }
}
