//! RedLock on five independent masters (S0-5, S4-1, S4-4): `SET NX PX` on all, one after another, each with a
//! timeout of 50 ms. The client holds the lock if a majority answered within the time to live minus the
//! allowance for drift; otherwise the client releases everywhere. Published by Redis's author; here the end
//! of the validity time stops a holder's work.
//!
//! Claims: safe while a majority is up (S1-2, S4-1); disputed (S0-11): Kleppmann shows that clock jumps,
//! pauses and restarts without fsync break the design.

use std::time::Duration;

use rowlock_env::rng;
use rowlock_env::time::{self, Instant};
use rowlock_world::executor::Simulation;

use super::machines::{Plan, redis};
use crate::TTL;
use crate::design::{Build, Contender, Deployment, Doing, Grant, Locker};
use crate::outside_view::{Between, OutsideView, Released, Remark};
use crate::redis::client::{Client, Where};
use crate::redis::core::{Answer, Command};
use crate::redis::log::Persistence;
use crate::wire::Trouble;

const MASTERS: usize = 5;
const QUORUM: usize = MASTERS / 2 + 1;
const COMMAND_TIMEOUT: Duration = Duration::from_millis(50);

pub(super) const MODELS: [(&str, Build); 2] = [
    ("redlock", |world, view| build(world, view, Persistence::None)),
    ("redlock-fsync", |world, view| build(world, view, Persistence::Always)),
];

fn build(world: &Simulation, view: &OutsideView, persistence: Persistence) -> Deployment {
    let plan = Plan { servers: MASTERS, ..Plan::one(persistence) };
    redis(world, view, plan, |me, places| {
        let client = |place: &Where| Client::new(place.clone(), COMMAND_TIMEOUT, me.view.meter().clone());
        let masters = places.iter().map(client).collect();
        Box::new(RedlockLocker { me: me.clone(), masters, valid_until: time::now() })
    })
}

struct RedlockLocker {
    me: Contender,
    masters: Vec<Client>,
    valid_until: Instant,
}

/// Returns the allowed drift of clocks in the time to live: one percent and 2 ms, as in the published code.
fn drift() -> Duration {
    TTL / 100 + Duration::from_millis(2)
}

impl RedlockLocker {
    /// Sets the key on all masters and returns the number of successes.
    async fn set_everywhere(&mut self, value: &str) -> usize {
        let mut given = 0;
        for index in 0..self.masters.len() {
            if index == 2 {
                self.me.between(Between::Acquire).await;
            }
            let set = self.masters[index].run(Command::set_nx_px(value)).await;
            given += usize::from(set == Ok(Answer::Ok));
        }
        given
    }

    /// Deletes the key on all masters. Returns the number of deletions and the number of answers.
    async fn delete_everywhere(&mut self, value: &str) -> (usize, usize) {
        let (mut ours, mut answered) = (0, 0);
        for master in &mut self.masters {
            let answer = master.run(Command::compare_and_delete(value)).await;
            ours += usize::from(answer == Ok(Answer::Number(1)));
            answered += usize::from(answer.is_ok());
        }
        (ours, answered)
    }
}

impl Locker for RedlockLocker {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            loop {
                let (value, began) = (self.me.unique(), time::now());
                let given = self.set_everywhere(&value).await;
                self.valid_until = began + TTL - drift();
                if given >= QUORUM && time::now() < self.valid_until {
                    return Ok(Grant { token: None, value });
                }
                self.delete_everywhere(&value).await;
                self.me.view.remark(Remark::Denied);
                // Random delay: clients that split the masters between them would otherwise split them again.
                time::sleep(Duration::from_millis(50 + rng::below(150))).await;
            }
        })
    }

    fn lost<'a>(&'a self, _: &'a Grant) -> Doing<'a, ()> {
        Box::pin(time::sleep_until(self.valid_until))
    }

    fn unlock(&mut self, grant: Grant) -> Doing<'_, Released> {
        Box::pin(async move {
            match self.delete_everywhere(&grant.value).await {
                (QUORUM.., _) => Released::Freed,
                (_, QUORUM..) => Released::WasNotHeld,
                _ => Released::Unknown,
            }
        })
    }
}
