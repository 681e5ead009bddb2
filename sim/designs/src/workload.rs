//! Behavior of every client, whatever the design: wait for the lock, read a number, work, check once more,
//! write the number back incremented, release. The client reports its beliefs to the outside view.
//!
//! The client is as careful as a program can be: a holder that learns of its loss stops. But a write under
//! way cannot be recalled, and between the last check and the write there is always a gap.

use std::time::Duration;

use rowlock_env::{rng, time};

use crate::design::{Contender, Locker};
use crate::outside_view::{Released, Remark};
use crate::scenario::Scenario;
use crate::store::Stores;

/// Pause before the next try after a failed acquire.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Time from the last check to the store.
const WRITE_TAKES: Duration = Duration::from_millis(2);

/// Runs one client, for ever.
pub async fn contend(me: Contender, mut locker: Box<dyn Locker>, stores: Stores, scenario: Scenario) {
    loop {
        let (least, more) = scenario.pause();
        time::sleep(up_to(least, more)).await;
        work_once(&me, locker.as_mut(), &stores, scenario).await;
    }
}

fn up_to(least: Duration, more: Duration) -> Duration {
    let nanos = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
    least + Duration::from_nanos(rng::below(nanos))
}

async fn work_once(me: &Contender, locker: &mut dyn Locker, stores: &Stores, scenario: Scenario) {
    me.view.wants(me.id);
    let grant = loop {
        match locker.lock().await {
            Ok(grant) => break grant,
            Err(_) => time::sleep(RETRY_AFTER).await,
        }
    };
    let (least, more) = scenario.job();
    let job = me.view.holds(me.id, grant.token).unwrap_or_else(|| up_to(least, more));
    let seen = stores.read(grant.token);
    let is_told = tokio::select! {
        biased;
        () = locker.lost(&grant) => true,
        () = time::sleep(job) => false,
    };
    if is_told {
        me.view.remark(Remark::ToldOfLoss);
    } else {
        me.view.writes(me.id);
        let mut arrival = Box::pin(time::sleep(WRITE_TAKES));
        let is_told_too_late = tokio::select! {
            biased;
            () = locker.lost(&grant) => true,
            () = &mut arrival => false,
        };
        if is_told_too_late {
            me.view.remark(Remark::ToldOfLoss);
            me.view.lets_go(me.id);
            arrival.await;
        }
        stores.write(grant.token, seen);
    }
    me.view.lets_go(me.id);
    let how: Released = locker.unlock(grant).await;
    me.view.released(me.id, how);
}
