//! Repeats a request until the cluster serves it or the session ends; sends several reads together.

use std::future::Future;

use futures_util::future::join_all;
use rowlock_client::Error;
use rowlock_env::time;

use super::limits::PAUSE;

/// Repeats a request that may be repeated: the outcome of the last attempt. Ends with the session at the
/// latest.
pub async fn insist<T, F>(mut request: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match request().await {
            Err(e) if e.is_retryable() || e.may_have_happened() => time::sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}

/// The outcomes of reads that go out together, in their order.
pub async fn all<T, F>(requests: impl IntoIterator<Item = F>) -> Vec<T>
where
    F: Future<Output = T>,
{
    join_all(requests).await
}
