//! Recipes built of locks and znodes: elections, counters, latches.
//!
//! No operation reports a campaign as an acquisition: a candidate that gives way to a named successor queues
//! again, so the order of requests is not the order of leading. A leader reports its belief like any holder.

use rowlock_client::{Candidate, Error, Kept, TransferError};
use rowlock_env::time;
use rowlock_proto::lock::Mode;

use crate::cluster::workload::chance::{between, chance, millis, pick};
use crate::cluster::workload::life::Place;
use crate::cluster::workload::section::{HeldLock, Section};

/// Campaigns, leads for a while, and then resigns or transfers the leadership.
pub(super) async fn campaign(place: &Place) {
    let (caller, lock) = (&place.caller, place.caller.profile().lead);
    let election = caller.client().election_at(caller.lock_path(lock));
    let position = election.campaign_timeout(caller.profile().host.to_string(), millis(500, 5_000));
    let Ok(leadership) = position.await else { return };
    let mut section = Section::new(caller.clone(), HeldLock::Lead(leadership), vec![(lock, Mode::Exclusive)]);
    if !section.work(millis(0, 800)).await || chance(50) {
        section.release().await;
        return;
    }
    let candidates = time::timeout(millis(100, 1_000), election.candidates()).await;
    let own = caller.session();
    let others: Vec<Candidate> =
        candidates.into_iter().flatten().flatten().filter(|one| one.session != own).collect();
    if others.is_empty() || !section.is_held() {
        section.release().await;
        return;
    }
    let successor = pick(&others);
    let Some(HeldLock::Lead(leadership)) = section.into_held_lock() else { return };
    let transferred = leadership.transfer_to(&successor).await;
    if let Err(TransferError::Kept(Kept { guard: leadership, error: Error::NotWaiting })) = transferred {
        let section = Section::new(caller.clone(), HeldLock::Lead(leadership), vec![(lock, Mode::Exclusive)]);
        section.release().await;
    }
}

/// Observes the leader for a while.
pub(super) async fn observe(place: &Place) {
    let path = place.caller.lock_path(place.caller.profile().lead);
    let mut observer = place.caller.client().election_at(path).observe();
    for _ in 0..between(1, 4) {
        match time::timeout(millis(200, 1_500), observer.next()).await {
            Ok(Ok(_)) => {}
            // No change, or no reply.
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// Adds to the counter of the run.
pub(super) async fn count(place: &Place) {
    let counter = place.caller.client().counter_at("/counters/one");
    for _ in 0..between(1, 3) {
        // The cause does not matter: the session has ended, or too many clients compete.
        if counter.add(1).await.is_err() {
            return;
        }
    }
}

/// Counts a latch down, or waits briefly for its end.
pub(super) async fn latch(place: &Place) {
    let name = format!("latch{}", between(1, 3));
    let latch = place.caller.client().latch(&name, 4);
    // The outcome does not matter.
    if chance(60) {
        let _ = latch.count_down().await;
    } else {
        let _ = latch.wait_timeout(millis(100, 1_000)).await;
    }
    if chance(10) {
        let _ = latch.remove().await;
    }
}
