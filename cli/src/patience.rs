//! Progress messages while a command waits. At a terminal they come after a second; in scripts, where a
//! message on stderr means that something is wrong, only while no server can be reached.

use std::pin::pin;
use std::time::Duration;

use rowlock_env::time;

use crate::paint::Paint;
use crate::print::errln;

/// After this a script gets a message, too: something is wrong.
const LONG: Duration = Duration::from_secs(2);
/// What takes no longer is not reported.
pub const SOON: Duration = Duration::from_secs(1);

/// The result of `work`. When that takes longer than [`SOON`] and stderr is a terminal, prints what `why`
/// returns.
///
/// # Cancel safety
/// That of `work`.
pub async fn explained<T>(work: impl Future<Output = T>, why: impl Future<Output = String>) -> T {
    explained_to(Paint::stderr(), work, why).await
}

/// The result of `work`. When that takes longer than [`LONG`] and stderr is no terminal, prints this.
///
/// # Cancel safety
/// That of `work`.
pub async fn never_silent<T>(work: impl Future<Output = T>, what: impl Fn() -> &'static str) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = time::sleep(LONG), if !Paint::stderr().is_terminal() => {}
    }
    errln!("rowlock: {}", what());
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
