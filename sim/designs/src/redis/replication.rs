//! A replica's side of replication: copies everything from its primary, then applies the stream of changes
//! and reports its position once per second. It discards its former data, even if no other server has it.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time;
use tokio::sync::mpsc;

use super::server::Server;
use super::{Ask, Push, Redis, Reply};
use crate::wire::{Connection, Meter};

/// `repl-ping-replica-period`'s counterpart: how often a replica reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// A connection to the primary without an answer for this long is given up (`repl-timeout` is 60 s in Redis).
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Before the primary is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Follows whomever the server is told to follow, for ever.
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
        // Reports are requests only so that a silent primary is noticed.
        if connection.call(Ask::Acked(server.offset()), SILENCE_MAX).await.is_err() {
            return;
        }
    }
}

/// Applies changes until it is time to report. `false`: the connection is over.
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
