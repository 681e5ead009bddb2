//! Locks of every kind: acquired, used, and released in every way.

use std::future::Future;

use rowlock_client::{Error, FencingToken, Guard, Owner};
use rowlock_env::time;
use rowlock_proto::lock::{Claim, Mode};

use crate::cluster::workload::caller::{Caller, failure};
use crate::cluster::workload::chance::{about, between, chance, millis, pick};
use crate::cluster::workload::life::Place;
use crate::cluster::workload::rest;
use crate::cluster::workload::section::{HeldLock, Section};
use crate::history::Lock;
use crate::history::client::{Answer, ClientFact, Op};

/// Returns one of the plain locks, and its path.
pub(super) fn any_lock(place: &Place) -> (Lock, String) {
    let lock = pick(&place.caller.profile().plain);
    (lock, place.caller.lock_path(lock).to_owned())
}

/// Acquires one lock exclusively.
async fn acquire(
    caller: &Caller,
    lock: Lock,
    asking: impl Future<Output = Result<Option<Guard>, Error>>,
) -> Option<Section> {
    let asking = async { Ok(asking.await?.map(HeldLock::Lock)) };
    caller.acquire(vec![(lock, Mode::Exclusive)], asking).await.ok().flatten()
}

/// Works for a while and releases the locks.
pub(super) async fn use_and_end(mut section: Section) {
    let long = about(section.mean_work());
    if section.work(long).await {
        match between(0, 99) {
            0..60 => section.release().await,
            60..75 => {
                section.verify().await;
                section.release().await;
            }
            75..90 => drop(section),
            // A client that forgets its locks for a while.
            90..96 => {
                section.work(millis(1_000, 3_000)).await;
                section.release().await;
            }
            _ => {
                // Drops the future in the middle of the release.
                let _ = time::timeout(millis(0, 20), section.release()).await;
            }
        }
    } else {
        section.release().await;
    }
}

pub(super) async fn mutex(place: &Place) {
    let (lock, path) = any_lock(place);
    let mutex = place.caller.client().mutex_at(&path);
    if let Some(section) = acquire(&place.caller, lock, async { mutex.lock().await.map(Some) }).await {
        use_and_end(section).await;
    }
}

/// Acquires one lock a few times in a row. Each acquire leaves with the unwaited release before.
pub(super) async fn repeated(place: &Place) {
    let (lock, path) = any_lock(place);
    let mutex = place.caller.client().mutex_at(&path);
    for _ in 0..between(2, 5) {
        let asking = async { mutex.lock_timeout(millis(500, 3_000)).await.map(Some) };
        let Some(mut section) = acquire(&place.caller, lock, asking).await else { return };
        section.work(millis(0, 60)).await;
        drop(section);
    }
}

pub(super) async fn try_lock(place: &Place) {
    let (lock, path) = any_lock(place);
    let mutex = place.caller.client().mutex_at(&path);
    if let Some(section) = acquire(&place.caller, lock, mutex.try_lock()).await {
        use_and_end(section).await;
    }
}

pub(super) async fn patient(place: &Place) {
    let (lock, path) = any_lock(place);
    let mutex = place.caller.client().mutex_at(&path);
    let limit = millis(1, 2_000);
    let asking = async { mutex.lock_timeout(limit).await.map(Some) };
    if let Some(section) = acquire(&place.caller, lock, asking).await {
        use_and_end(section).await;
    }
}

/// Drops the acquire at some moment, at the latest while the acquire waits.
pub(super) async fn dropped(place: &Place) {
    let (lock, path) = any_lock(place);
    let mutex = place.caller.client().mutex_at(&path);
    let asking = acquire(&place.caller, lock, async { mutex.lock().await.map(Some) });
    if let Ok(Some(section)) = time::timeout(millis(0, 40), asking).await {
        use_and_end(section).await;
    }
}

/// Acquires with a maximum or a minimum hold, a lock-delay or an owner.
pub(super) async fn options(place: &Place) {
    let (lock, path) = any_lock(place);
    let mut request = place.caller.client().mutex_at(&path).request().meta("with options");
    let mut long = millis(0, 600);
    if chance(50) {
        request = request.max_hold(millis(100, 1_500));
        // Sometimes beyond the maximum.
        long = millis(0, 2_500);
    }
    if chance(50) {
        request = request.lock_delay(millis(1, 2_000));
    }
    if chance(30) {
        request = request.min_hold(millis(1, 2_000));
        if chance(30) {
            request = request.min_hold_lapses();
        }
    }
    if chance(30) {
        request = request.owner(Owner::Named(between(1, 3)));
    }
    let asking = async { request.timeout(millis(500, 8_000)).lock().await.map(Some) };
    if let Some(mut section) = acquire(&place.caller, lock, asking).await {
        section.work(long).await;
        section.release().await;
    }
}

pub(super) async fn read(place: &Place) {
    if let Some(section) = reader(place).await {
        use_and_end(section).await;
    }
}

async fn reader(place: &Place) -> Option<Section> {
    let (lock, path) = any_lock(place);
    let rwlock = place.caller.client().rwlock_at(&path);
    let asking = async { rwlock.read().await.map(|guard| Some(HeldLock::Read(guard))) };
    place.caller.acquire(vec![(lock, Mode::Shared)], asking).await.ok().flatten()
}

pub(super) async fn write(place: &Place) {
    if let Some(section) = writer(place).await {
        use_and_end(section).await;
    }
}

async fn writer(place: &Place) -> Option<Section> {
    let (lock, path) = any_lock(place);
    let rwlock = place.caller.client().rwlock_at(&path);
    let asking = async { rwlock.write().await.map(|guard| Some(HeldLock::Write(guard))) };
    place.caller.acquire(vec![(lock, Mode::Exclusive)], asking).await.ok().flatten()
}

/// Downgrades a writer or upgrades a reader, up to three times.
pub(super) async fn convert(place: &Place) {
    let section = if chance(50) { reader(place).await } else { writer(place).await };
    let Some(mut section) = section else { return };
    for _ in 0..between(1, 3) {
        if !section.work(millis(0, 200)).await {
            break;
        }
        section.convert().await;
    }
    use_and_end(section).await;
}

pub(super) async fn permits(place: &Place) {
    let (lock, limit) = place.caller.profile().permits;
    let semaphore = place.caller.client().semaphore_at(place.caller.lock_path(lock), limit);
    // Sometimes more permits than there are.
    let most = u64::from(limit) + u64::from(chance(5));
    let count = u32::try_from(between(1, most)).unwrap_or(1);
    let asking = async {
        let permits = match between(0, 9) {
            0..2 => semaphore.try_acquire_many(count).await?,
            2..4 => Some(semaphore.acquire_timeout(count, millis(1, 2_000)).await?),
            _ => Some(semaphore.acquire_many(count).await?),
        };
        Ok(permits.map(HeldLock::Permits))
    };
    if let Ok(Some(section)) = place.caller.acquire(vec![(lock, Mode::Permits(count))], asking).await {
        use_and_end(section).await;
    }
}

/// Acquires several locks at once, in any order.
pub(super) async fn many(place: &Place) {
    let mut locks = place.caller.profile().plain.clone();
    rowlock_env::rng::shuffle(&mut locks);
    locks.truncate(usize::try_from(between(1, locks.len() as u64)).unwrap_or(1));
    // The names are below the lock base, as all plain locks of a run are.
    let name = |lock: &Lock| place.caller.lock_path(*lock).trim_start_matches("/locks/").to_owned();
    let all = place.caller.client().multi(locks.iter().map(name));
    let asking = async {
        let guards = match between(0, 9) {
            0..2 => all.try_lock().await?,
            2..4 => Some(all.lock_timeout(millis(1, 2_000)).await?),
            _ => Some(all.lock().await?),
        };
        Ok(guards.map(HeldLock::Many))
    };
    let wanted = locks.iter().map(|lock| (*lock, Mode::Exclusive)).collect();
    if let Ok(Some(section)) = place.caller.acquire(wanted, asking).await {
        use_and_end(section).await;
    }
}

/// Acquires one lock inside another, possibly in a deadlock: the server reports the deadlock to the owner, or
/// the time limit ends the wait.
pub(super) async fn nested(place: &Place) {
    let owner = place.caller.client().new_owner();
    let mut held: Vec<Section> = Vec::new();
    let mut locks = place.caller.profile().plain.clone();
    rowlock_env::rng::shuffle(&mut locks);
    for lock in locks.into_iter().take(2) {
        let mutex = place.caller.client().mutex_at(place.caller.lock_path(lock));
        let request = mutex.request().owner(owner).timeout(millis(200, 2_000));
        match acquire(&place.caller, lock, async { request.lock().await.map(Some) }).await {
            Some(mut section) => {
                section.work(millis(0, 150)).await;
                held.push(section);
            }
            None => break,
        }
    }
    while let Some(section) = held.pop() {
        section.release().await;
    }
}

/// Shares one hold of a lock; the last share releases the lock.
pub(super) async fn reentrant(place: &Place) {
    let (lock, path) = any_lock(place);
    let owner = place.caller.client().new_owner();
    let mutex = place.caller.client().reentrant_mutex_at(&path);
    let asking = async { mutex.lock(owner).await.map(|guard| Some(HeldLock::Reentrant(guard))) };
    let wanted = vec![(lock, Mode::Exclusive)];
    let Ok(Some(mut section)) = place.caller.acquire(wanted, asking).await else { return };
    if section.work(millis(0, 100)).await {
        // Immediate while the client holds the lock; bounded in case the lock is lost in between.
        let share = mutex.lock_timeout(owner, millis(1, 50)).await;
        section.work(millis(0, 100)).await;
        if let Ok(share) = share {
            let _ = share.release().await;
        }
    }
    section.release().await;
}

/// Holds a lock for longer than many cuts last, so that the client must find out about losses afterwards.
pub(super) async fn hold(place: &Place) {
    let (lock, path) = any_lock(place);
    let mutex = place.caller.client().mutex_at(&path);
    let asking = async { mutex.lock_timeout(millis(500, 3_000)).await.map(Some) };
    if let Some(mut section) = acquire(&place.caller, lock, asking).await {
        section.work(millis(1_000, 6_000)).await;
        section.release().await;
    }
}

/// Takes a lock away from the client that has been first in its queue for a while, as people do who believe
/// the holder dead. The checkers learn the outcome from the log.
pub(super) async fn force(place: &Place) {
    let (client, (lock, queue)) = (place.caller.client(), any_lock(place));
    let Some(first) = first_of(place, &queue).await else { return };
    place.rest(millis(100, 900)).await;
    if first_of(place, &queue).await.as_ref() != Some(&first) {
        return;
    }
    if chance(20) {
        return rest::force(place, lock, None).await;
    }
    let path = format!("{queue}/{first}");
    let Ok(Some(stat)) = client.exists(&path).await else { return };
    // A client that deletes a position of its own session releases the position without a notice to the
    // guard.
    let is_own = stat.ephemeral_owner == place.caller.session();
    let token = FencingToken(stat.czxid.0);
    match between(0, 2) {
        0 => rest::force(place, lock, Some(token)).await,
        1 if !is_own => {
            // The outcome does not matter: the holder may have been faster.
            let _ = client.delete(&path, None).await;
        }
        _ => {
            let call = place.caller.begin_next(Op::Force { lock, token: Some(token) });
            let forced = client.force_release(&Claim { path: path.into(), token }).await;
            call.end(forced.map(Answer::Released).map_err(|error| failure(&error)));
        }
    }
}

/// Asks the holders of a lock for its release, sometimes with a deadline, as operators do.
pub(super) async fn ask_holders(place: &Place) {
    let (lock, path) = any_lock(place);
    let within = chance(40).then(|| millis(1_000, 6_000));
    let within_ms = within.map(|time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
    place.caller.journal().record(ClientFact::Asks { lock, within_ms });
    // The checkers learn the outcome from the log.
    let _ = place.caller.client().ask_holders(&path, "it is wanted", within).await;
}

/// Returns the name of the oldest position in the queue.
pub(super) async fn first_of(place: &Place, lock: &str) -> Option<String> {
    let names = place.caller.client().get_children(lock).await.ok()?.names;
    let number = |name: &String| name.rsplit(|c: char| !c.is_ascii_digit()).next().map(str::to_owned);
    names.into_iter().min_by_key(number)
}
