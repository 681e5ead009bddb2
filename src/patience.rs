//! What a person at a terminal is told while a command waits for others. Nothing is said where nobody
//! watches: in scripts, messages on stderr mean that something is wrong.

use std::pin::pin;
use std::time::Duration;

use rowlock_env::time;

use crate::paint::Paint;
use crate::print::errln;

/// What takes no longer needs no word.
pub const SOON: Duration = Duration::from_secs(1);

/// The result of `work`. When that takes longer than [`SOON`] and somebody watches, prints what `why` says.
///
/// # Cancel safety
/// That of `work`.
pub async fn explained<T>(work: impl Future<Output = T>, why: impl Future<Output = String>) -> T {
    explained_to(Paint::stderr(), work, why).await
}

async fn explained_to<T>(
    paint: Paint,
    work: impl Future<Output = T>,
    why: impl Future<Output = String>,
) -> T {
    let mut work = pin!(work);
    if !paint.is_terminal() {
        return work.await;
    }
    let explain = async {
        time::sleep(SOON).await;
        let why = why.await;
        errln!("{}", paint.dim(&format!("rowlock: {why}")));
        std::future::pending::<T>().await
    };
    tokio::select! {
        biased;
        done = &mut work => done,
        never = explain => never,
    }
}
