//! Tasks beside a guard: a watch of our znode on plain ZooKeeper, and the release at the end of a maximum
//! hold. The guard aborts its tasks at the end.

use std::time::Duration;

use rowlock_env::task::{self, Task};
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::Claim;
use rowlock_proto::request::PathWatch;
use rowlock_proto::{ErrorCode, Request};

use super::guard::Seat;
use super::loss::Loss;
use crate::client::Client;
use crate::error::{Error, LostReason};
use crate::limits::REFUSED_PAUSE;
use crate::session::watches::WatchedBy;
use crate::session::znode_removal::ZnodeRemoval;
use crate::znode::OneshotWatch;

/// Starts the tasks of a guard. `max_hold`: start of the hold, and maximum duration.
pub(super) fn post(
    client: &Client,
    seat: &Seat,
    claim: &Claim,
    loss: &Loss,
    max_hold: Option<(Instant, Duration)>,
) -> Vec<Task<()>> {
    let mut tasks = Vec::new();
    if let Seat::Watched(_) = seat {
        let watch = stand_guard(client.clone(), claim.path.to_string(), loss.clone());
        tasks.push(task::spawn("rowlock-guard", watch));
    }
    if let Some((since, most)) = max_hold {
        let path = client.relative(claim.path.to_string());
        let clock = give_up(client.clone(), removal(seat, claim), loss.clone(), path, since, most);
        tasks.push(task::spawn("rowlock-max-hold", clock));
    }
    tasks
}

/// Moment of the warning before the end of a maximum hold.
pub(super) fn warning_at(since: Instant, most: Duration) -> Instant {
    since + most / 5 * 4
}

fn removal(seat: &Seat, claim: &Claim) -> ZnodeRemoval {
    match seat {
        Seat::Served(place) => place.removal(None),
        Seat::Watched(place) => ZnodeRemoval::new(
            place.parent().to_owned(),
            place.prefix().to_owned(),
            Some(claim.path.to_string()),
            None,
        ),
    }
}

/// Releases the lock at the end of the maximum hold. (The guard sees the end by itself.)
async fn give_up(
    client: Client,
    removal: ZnodeRemoval,
    loss: Loss,
    path: String,
    since: Instant,
    most: Duration,
) {
    time::alarm(warning_at(since, most)).await;
    tracing::warn!(path, max_hold = ?most, "four fifths of the maximum hold are over");
    time::alarm(since + most).await;
    tracing::warn!(path, max_hold = ?most, "held for the maximum: giving the lock back");
    loss.declare(LostReason::MaxHold);
    client.post(removal);
}

/// Watches our znode on plain ZooKeeper, since another session may delete the znode, by force or by mistake.
async fn stand_guard(client: Client, path: String, loss: Loss) {
    loop {
        let (mut watch, registration) = OneshotWatch::new(&client, WatchedBy::GetData, path.clone());
        let read = Request::GetData(PathWatch { path: path.clone(), watch: true });
        let reply = match client.submit(read, Some(registration)).await {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        match reply {
            // Changed or deleted: look again.
            Ok(_) => {
                if watch.changed().await.is_err() {
                    return;
                }
            }
            Err(Error::Rejected(ErrorCode::NoNode)) => {
                loss.declare(LostReason::Deleted);
                return;
            }
            Err(Error::ConnectionLoss) => {}
            Err(error) if error.is_retryable() => time::sleep(REFUSED_PAUSE).await,
            // The session has ended, which the guard sees by itself; or we may not read our own znode.
            Err(_) => return,
        }
    }
}
