//! Locks on plain ZooKeeper: the recipe of ephemeral sequential znodes and watches.
//!
//! The client enters the queue and lists the queue; without an earlier blocking znode the lock is ours;
//! otherwise the client watches the nearest blocking znode, and after any event **lists again**. Invariant:
//! only a list grants. A wake-up alone means nothing: the predecessor may have been a waiter that gave up, or
//! the connection may have broken.
//!
//! For the permits of a semaphore every earlier departure may matter, hence the client watches the whole
//! queue: a release wakes all waiters. Rowlock's servers need neither.

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_env::time;
use rowlock_proto::lock::{Claim, limit_data, limit_in};
use rowlock_proto::request::{PathWatch, SetData};
use rowlock_proto::{ErrorCode, FencingToken, Request, Stat, path};

use super::acquire::{LockSpec, Progress, Terms};
use super::guard::{Grant, Guard, Seat};
use super::names::{self, Kind};
use super::place::Place;
use super::queue::{Queue, RecipePosition, Wake};
use crate::client::Client;
use crate::error::Error;
use crate::limits::REFUSED_PAUSE;
use crate::session::lock_states::{LockState, LockStateCell};
use crate::session::watches::{WatchRequest, WatchedBy};
use crate::znode::{self, OneshotWatch, Znode};

/// Implements [`super::acquire::acquire`] for a single lock.
pub(crate) async fn acquire(
    client: &Client,
    wanted: &LockSpec,
    terms: &Terms,
    wait: bool,
    progress: &mut Progress,
) -> Result<Option<Guard>, Error> {
    let prefix = names::queue_prefix(client.config().queue_names, wanted.kind, &names::random_id());
    let mut place = Place::new(client.clone(), wanted.lock.clone(), prefix, terms.data())?;
    if let Kind::Permits(count) = wanted.kind {
        place = place.with_parent_data(limit_data(wanted.limit));
        agree_on_limit(&place, wanted.limit, count).await?;
    }
    let (stat, mut listed) = place.enter().await?;
    loop {
        let attachments = client.vitals().attachments;
        let limit = match wanted.kind {
            Kind::Permits(_) => limit_of_parent(&place).await?.unwrap_or(wanted.limit),
            Kind::Lock | Kind::Read | Kind::Write => 0,
        };
        let queue = match listed.take() {
            Some(queue) => queue,
            None => place.queue().await?,
        };
        match queue.position(place.name(), limit) {
            RecipePosition::Holder => return guard(client, place, stat, wanted, terms, progress).map(Some),
            RecipePosition::Behind { .. } if !wait => {
                place.leave().await?;
                return Ok(None);
            }
            RecipePosition::Behind { position, wake, holder } => {
                progress.stand(&wanted.lock, position, Some(holder));
                wait_for(&place, wake, attachments, progress).await?;
            }
            RecipePosition::Absent => {
                place.forget();
                return Err(Error::PlaceLost);
            }
        }
    }
}

fn guard(
    client: &Client,
    place: Place,
    stat: Stat,
    wanted: &LockSpec,
    terms: &Terms,
    progress: &Progress,
) -> Result<Guard, Error> {
    // A znode of a session of before is not ours.
    if decides!("queued-znode-is-not-own", stat.ephemeral_owner != client.session_id()) {
        return Err(Error::PlaceLost);
    }
    let claim = Claim { path: place.path().into(), token: FencingToken(stat.czxid.0) };
    let cell = LockStateCell::new();
    cell.advance(LockState::Held { since: time::now() });
    let grant = Grant {
        claim,
        kind: wanted.kind,
        cell,
        stats: progress.stats(),
        max_hold: terms.max_hold,
        ungranted_at: None,
    };
    Guard::new(client, Seat::Watched(place), grant)
}

/// Writes the number of permits, unless an earlier client decided the number.
async fn agree_on_limit(place: &Place, limit: u32, count: u32) -> Result<(), Error> {
    loop {
        let read = Request::GetData(PathWatch { path: place.parent().to_owned(), watch: false });
        let Znode { data, stat } = match place.insist(read).await {
            Ok(reply) => znode::data(reply)?,
            Err(Error::Rejected(ErrorCode::NoNode)) => {
                place.make_parent().await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let actual = match limit_in(data.as_deref().unwrap_or_default()) {
            None if limit > 0 && data.as_ref().is_none_or(Bytes::is_empty) => {
                let (path, data) = (place.parent().to_owned(), Some(limit_data(limit)));
                let set = Request::SetData(SetData { path, data, version: stat.version });
                match place.insist(set).await {
                    Ok(_) | Err(Error::Rejected(ErrorCode::BadVersion | ErrorCode::NoNode)) => continue,
                    Err(error) => return Err(error),
                }
            }
            actual => actual.unwrap_or(0),
        };
        let agreed = (limit == 0 || limit == actual) && count <= actual;
        return if agreed { Ok(()) } else { Err(Error::LimitConflict { actual }) };
    }
}

async fn limit_of_parent(place: &Place) -> Result<Option<u32>, Error> {
    let read = Request::GetData(PathWatch { path: place.parent().to_owned(), watch: false });
    let data = znode::data(place.insist(read).await?)?.data;
    Ok(limit_in(data.as_deref().unwrap_or_default()))
}

/// Returns when the queue needs another list. Draws no conclusion about the holder.
///
/// `attachments`: the number of attachments when the queue was listed.
async fn wait_for(place: &Place, wake: Wake, attachments: u64, progress: &mut Progress) -> Result<(), Error> {
    let client = place.client();
    // getData rather than exists: when the one before has just gone, it leaves no watch behind.
    let watched = match &wake {
        Wake::Gone(name) => watch(client, WatchedBy::GetData, path::join(place.parent(), name)).await?,
        Wake::AnyChange => watch(client, WatchedBy::GetChildren, place.parent().to_owned()).await?,
    };
    let Some((mut changed, reply)) = watched else { return Ok(()) };
    let mut resized = None;
    if wake == Wake::AnyChange {
        // Was the list from before the watch? And the limit may change as well.
        let names = znode::children(reply)?.names;
        let Some((limit_changed, reply)) =
            watch(client, WatchedBy::GetData, place.parent().to_owned()).await?
        else {
            return Ok(());
        };
        let limit = limit_in(znode::data(reply)?.data.as_deref().unwrap_or_default()).unwrap_or(0);
        if decides!(
            "queued-znode-holds",
            Queue::new(names).position(place.name(), limit) == RecipePosition::Holder
        ) {
            return Ok(());
        }
        resized = Some(limit_changed);
    }
    let mut vitals = client.watch_vitals();
    let resize = async {
        match &mut resized {
            Some(watch) => watch.changed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        event = changed.changed() => {
            event?;
            progress.wakeups += 1;
            Ok(())
        }
        event = resize => event.map(drop),
        // Whatever happened while we were cut off, the list knows.
        _ = vitals.wait_for(|vitals| vitals.attachments != attachments || vitals.ending.is_some()) => {
            match client.vitals().ending {
                Some(_) => Err(client.shared().ended()),
                None => Ok(()),
            }
        }
    }
}

/// Reads and leaves a watch. `None`: list the queue again.
async fn watch(
    client: &Client,
    by: WatchedBy,
    path: String,
) -> Result<Option<(OneshotWatch, crate::session::Reply)>, Error> {
    let (watch, registration): (_, WatchRequest) = OneshotWatch::new(client, by, path.clone());
    let read = PathWatch { path, watch: true };
    let request = match by {
        WatchedBy::GetChildren => Request::GetChildren2(read),
        WatchedBy::GetData | WatchedBy::Exists => Request::GetData(read),
    };
    match client.submit(request, Some(registration)).await?.await {
        Ok(reply) => Ok(Some((watch, reply))),
        Err(Error::Rejected(ErrorCode::NoNode) | Error::ConnectionLoss) => Ok(None),
        Err(error) if error.is_retryable() => {
            time::sleep(REFUSED_PAUSE).await;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
