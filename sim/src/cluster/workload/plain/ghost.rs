//! A client that takes a shared lock with a lock-delay and dies at once. The delay remains, for clients that
//! hold the lock at the same time or come next.

use std::time::Duration;

use rowlock_proto::Request;
use rowlock_proto::lock::{Acquire, Mode, SessionOptions};

use super::super::chance::{between, millis};
use super::super::life::Place as Life;
use super::session::Session;

const GRACE_MS: u32 = 100;

/// Takes the lock at `path` in this mode, if the lock is free for this mode, and disconnects.
pub(in super::super) async fn pass_by(life: &Life, path: &str, mode: Mode) {
    let profile = life.caller.profile();
    let timeout = Duration::from_millis(1_500);
    let Some(mut session) =
        Session::open_with(life.caller.journal(), &profile.membership, timeout, Some(GRACE_MS)).await
    else {
        return;
    };
    let options = Request::SessionOptions(SessionOptions { disconnect_grace_ms: GRACE_MS });
    let acquire = Acquire {
        mode,
        wait: false,
        lock_delay_ms: u32::try_from(between(200, 3_000)).unwrap_or(200),
        ..Acquire::exclusive(path, format!("{:016x}-ghost-", session.id().0))
    };
    // The acquire may have been refused, or have succeeded without a reply.
    if session.ask(options).await.is_ok() {
        let _ = session.attempt(Request::Acquire([acquire].into())).await;
        session.idle(millis(0, 100)).await;
    }
    session.hang_up();
}
