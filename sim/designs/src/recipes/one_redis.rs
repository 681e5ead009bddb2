//! Designs that poll one Redis server.
//!
//! - `SETNX`, then `EXPIRE`, and `DEL` to release, as common before Redis 2.6.12; the notes warn of this
//!   design (S1-4, S2-3, S3-1). Claim: a client that dies between the two commands leaves the lock taken for
//!   ever.
//! - `SETNX` with the time of expiry as value, by the client's clock. A client that finds a passed time takes
//!   over with `GETSET`; `DEL` releases. Published in the documentation of `SETNX` and in many tutorials
//!   (S1-5). Claims: the design needs synchronized clocks; losers of a race overwrite the winner's time; the
//!   lock has no owner, so any client can unlock.
//! - `SET key random NX PX ttl` (S0-1, S1-3), released in three ways: a bare `DEL` (S1-7), `GET` then `DEL`
//!   (S1-8), and the script that compares and deletes (S0-4, S1-6, S4-2), which Redis's documentation
//!   recommends. Claims: the bare `DEL` frees another client's lock; so does `GET` then `DEL` if the lock
//!   expires in between; the script never does. No variant is fault tolerant (S1-9).

use rowlock_env::time;
use rowlock_world::executor::Simulation;

use super::machines::{Plan, redis, redis_client};
use crate::TTL;
use crate::design::{Build, Contender, Deployment, Doing, Grant, Polling};
use crate::outside_view::{Between, OutsideView};
use crate::redis::client::Client;
use crate::redis::core::{Answer, Command};
use crate::redis::log::Persistence;
use crate::wire::Trouble;

#[derive(Clone, Copy)]
enum Acquire {
    SetnxThenExpire,
    Timestamps,
    SetNxPx,
}

#[derive(Clone, Copy)]
enum Release {
    Del,
    GetThenDel,
    CompareAndDelete,
}

pub(super) const MODELS: [(&str, Build); 6] = [
    ("setnx-expire", |w, v| build(w, v, Acquire::SetnxThenExpire, Release::Del)),
    ("client-timestamps", |w, v| build(w, v, Acquire::Timestamps, Release::Del)),
    ("set-nx-px-del", |w, v| build(w, v, Acquire::SetNxPx, Release::Del)),
    ("set-nx-px-get-del", |w, v| build(w, v, Acquire::SetNxPx, Release::GetThenDel)),
    ("set-nx-px-script", |w, v| build(w, v, Acquire::SetNxPx, Release::CompareAndDelete)),
    ("set-nx-px-script-fsync", |w, v| {
        build_with(w, v, Persistence::Always, Acquire::SetNxPx, Release::CompareAndDelete)
    }),
];

fn build(world: &Simulation, view: &OutsideView, acquire: Acquire, release: Release) -> Deployment {
    // Redis's own default: `appendonly no`.
    build_with(world, view, Persistence::None, acquire, release)
}

fn build_with(
    world: &Simulation,
    view: &OutsideView,
    persistence: Persistence,
    acquire: Acquire,
    release: Release,
) -> Deployment {
    redis(world, view, Plan::one(persistence), move |me, places| {
        Box::new(OneRedis { me: me.clone(), redis: redis_client(me, &places[0]), acquire, release })
    })
}

struct OneRedis {
    me: Contender,
    redis: Client,
    acquire: Acquire,
    release: Release,
}

fn expiry() -> String {
    (time::wall_ms() + TTL.as_millis() as i64 + 1).to_string()
}

fn has_passed(expiry: &str) -> bool {
    expiry.parse::<i64>().is_ok_and(|at| at < time::wall_ms())
}

impl OneRedis {
    /// Takes the lock. Returns the value of the key, or `None` if the lock is not free.
    async fn take(&mut self) -> Result<Option<String>, Trouble> {
        match self.acquire {
            Acquire::SetnxThenExpire => {
                let value = self.me.unique();
                if self.redis.run(Command::set_nx(&value)).await? != Answer::Number(1) {
                    return Ok(None);
                }
                self.me.between(Between::Acquire).await;
                self.redis.run(Command::expire()).await?;
                Ok(Some(value))
            }
            Acquire::Timestamps => self.take_by_timestamps().await,
            Acquire::SetNxPx => {
                let value = self.me.unique();
                let set = self.redis.run(Command::set_nx_px(&value)).await?;
                Ok((set == Answer::Ok).then_some(value))
            }
        }
    }

    async fn take_by_timestamps(&mut self) -> Result<Option<String>, Trouble> {
        let value = expiry();
        if self.redis.run(Command::set_nx(&value)).await? == Answer::Number(1) {
            return Ok(Some(value));
        }
        let Answer::Text(current) = self.redis.run(Command::get()).await? else { return Ok(None) };
        if !has_passed(&current) {
            return Ok(None);
        }
        let value = expiry();
        match self.redis.run(Command::get_set(&value)).await? {
            Answer::Text(before) if before != current => Ok(None), // and the winner's time is overwritten
            _ => Ok(Some(value)),
        }
    }
}

impl Polling for OneRedis {
    fn contender(&self) -> &Contender {
        &self.me
    }

    fn attempt(&mut self) -> Doing<'_, Result<Option<Grant>, Trouble>> {
        Box::pin(async { Ok(self.take().await?.map(|value| Grant { token: None, value })) })
    }

    fn release(&mut self, grant: Grant) -> Doing<'_, Result<bool, Trouble>> {
        Box::pin(async move {
            let delete = match self.release {
                Release::Del => Command::del(),
                Release::CompareAndDelete => Command::compare_and_delete(&grant.value),
                Release::GetThenDel => {
                    if self.redis.run(Command::get()).await? != Answer::Text(grant.value) {
                        return Ok(false);
                    }
                    self.me.between(Between::Release).await;
                    Command::del()
                }
            };
            Ok(self.redis.run(delete).await? == Answer::Number(1))
        })
    }
}
