//! Tokens of a node's HTTP listener: read at the start, and again when their file changes.

use std::sync::Arc;

use rowlock_env::reload::Reloaded;
use rowlock_env::worker;
use rowlock_metrics::Metrics;

use super::errors::StartError;
use crate::access::tokens::{self, TokenKeeper};
use crate::config::NodeConfig;

/// Keeper of the node's tokens, if it has a token file.
pub(super) type Tokens = Option<Arc<TokenKeeper>>;

pub(super) async fn open(config: &NodeConfig) -> Result<Tokens, StartError> {
    let Some(path) = config.http.token_file.clone() else { return Ok(None) };
    let opened = worker::run_blocking("token-file", move || tokens::open(path)).await;
    opened.map(|keeper| Some(Arc::new(keeper))).map_err(StartError::Tokens)
}

/// Reports the result of a check of the file.
pub(super) fn report(keeper: &TokenKeeper, metrics: &Metrics, reloaded: Reloaded<String>) {
    let failure = keeper.failure();
    metrics.token_file_unusable.set(u64::from(failure.is_some()));
    match reloaded {
        Reloaded::Same => {
            if let Some(error) = failure {
                tracing::warn!(
                    %error,
                    "the file of tokens still cannot be used: all tokens of the last good one stay valid; restore \
                     the file, or write an empty one to revoke all"
                );
            }
        }
        Reloaded::New => {
            let tokens = keeper.current().all().len();
            tracing::info!(tokens, "loaded a new file of tokens");
        }
        Reloaded::Failed(error) => {
            metrics.token_reload_failures_total.inc();
            tracing::error!(%error, "cannot load the changed file of tokens; still using the previous tokens: correct the file");
        }
    }
}
