//! Readers that try to upgrade to writer while a lock-delay of another session runs.

use rowlock_proto::lock::Mode;

use super::locks::{any_lock, use_and_end};
use crate::cluster::workload::chance::{between, chance, millis};
use crate::cluster::workload::life::Place;
use crate::cluster::workload::plain::ghost;
use crate::cluster::workload::section::HeldLock;

/// Acquires a read lock, lets another reader die, and repeatedly tries to upgrade to writer. A failed upgrade
/// leaves the old hold unchanged.
pub(super) async fn upgrade(place: &Place) {
    let (lock, path) = any_lock(place);
    let rwlock = place.caller.client().rwlock_at(&path);
    let request = rwlock.read_request().lock_delay(millis(100, 2_000)).timeout(millis(200, 3_000));
    let asking = async { request.lock().await.map(|guard| Some(HeldLock::Read(guard))) };
    let wanted = vec![(lock, Mode::Shared)];
    let Ok(Some(mut section)) = place.caller.acquire(wanted, asking).await else { return };
    if chance(70) {
        ghost::pass_by(place, &path, Mode::Shared).await;
    }
    for _ in 0..between(2, 8) {
        if place.is_over() || !section.work(millis(0, 250)).await {
            break;
        }
        section.convert().await;
    }
    use_and_end(section).await;
}
