//! Retries requests until the cluster serves them or the session ends; sends several reads concurrently.

use std::future::Future;

use futures_util::future::join_all;
use rowlock_client::Error;
use rowlock_env::time;

use super::limits::PAUSE;

/// Retries an idempotent request and returns the last result. Ends no later than the session.
pub async fn retry<T, F>(mut request: impl FnMut() -> F) -> Result<T, Error>
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

/// Sends reads concurrently; returns the results in order.
pub async fn all<T, F>(requests: impl IntoIterator<Item = F>) -> Vec<T>
where
    F: Future<Output = T>,
{
    join_all(requests).await
}
