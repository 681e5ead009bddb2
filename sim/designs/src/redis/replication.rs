//! Replica's side of replication: the replica copies all data from its primary, then applies the stream of
//! changes and reports its position once per second. The replica discards its former data, even if no other
//! server has that data.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time;
use tokio::sync::mpsc;

use super::server::Server;
use super::{Ask, Push, Redis, Reply};
use crate::wire::{Connection, Meter};

/// Interval of a replica's reports (compare `repl-ping-replica-period`).
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Silence after which a replica drops its connection to the primary (`repl-timeout` is 60 s in Redis).
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Pause before the next connection to the primary.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Follows the server's configured primary, for ever.
pub(super) async fn follow(server: Arc<Server>, meter: Meter) {
    let mut follows = server.follows.subscribe();
    loop {
        let whom = follows.borrow_and_update().clone();
        let Some(primary) = whom else {
            if follows.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            biased;
            changed = follows.changed() => if changed.is_err() { return },
            () = copy_and_apply(&server, &primary, &meter) => time::sleep(RETRY_AFTER).await,
        }
    }
}

async fn copy_and_apply(server: &Server, primary: &str, meter: &Meter) {
    let Ok((connection, mut pushes)) = Connection::<Redis>::open(primary, RETRY_AFTER, meter).await else {
        return;
    };
    let Ok(Reply::Copy(keys, offset)) = connection.call(Ask::Sync, SILENCE_MAX).await else { return };
    if server.take_copy(keys, offset).is_err() {
        return;
    }
    while apply_one(server, &mut pushes).await {
        // A report is a request so that the replica notices a silent primary.
        if connection.call(Ask::Acked(server.offset()), SILENCE_MAX).await.is_err() {
            return;
        }
    }
}

/// Applies changes until the next report is due. `false`: the connection is over.
async fn apply_one(server: &Server, pushes: &mut mpsc::Receiver<Push>) -> bool {
    let report_at = time::now() + REPORT_EVERY;
    loop {
        match time::timeout_at(report_at, pushes.recv()).await {
            Err(time::Elapsed) | Ok(Some(Push::GetAck)) => return true,
            Ok(Some(Push::Changes(offset, effects))) => {
                if server.take_changes(offset, effects).is_err() {
                    return false;
                }
            }
            Ok(Some(Push::Message(_))) => {}
            Ok(None) => return false,
        }
    }
}
