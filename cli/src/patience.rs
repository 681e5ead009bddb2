//! Progress messages while a command waits. At a terminal a message appears after a second; in a script,
//! where stderr means trouble, only while no server can be reached.

use std::pin::pin;
use std::time::Duration;

use rowlock_env::time;

use crate::paint::Paint;
use crate::print::errln;

/// Time until a script gets a message too: something is wrong.
const SCRIPT_DELAY: Duration = Duration::from_secs(2);
/// Time until a terminal gets a message.
pub const TERMINAL_DELAY: Duration = Duration::from_secs(1);

/// Awaits `work`. When `work` takes longer than [`TERMINAL_DELAY`] and stderr is a terminal, prints the text
/// returned by `why`.
///
/// # Cancel safety
/// Same as `work`.
pub async fn explained<T>(work: impl Future<Output = T>, why: impl Future<Output = String>) -> T {
    explained_to(Paint::stderr(), work, why).await
}

/// Awaits `work`. When `work` takes longer than [`SCRIPT_DELAY`] and stderr is no terminal, prints the text
/// returned by `message`.
///
/// # Cancel safety
/// Same as `work`.
pub async fn never_silent<T>(work: impl Future<Output = T>, message: impl Fn() -> &'static str) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = time::sleep(SCRIPT_DELAY), if !Paint::stderr().is_terminal() => {}
    }
    errln!("rowlock: {}", message());
    work.await
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
        time::sleep(TERMINAL_DELAY).await;
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
