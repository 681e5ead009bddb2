//! Stands for the floor `access` in a build without it: no listener, and reports are refused.

use std::sync::Arc;

use rowlock_consensus::log_clock::LogClock;
use rowlock_env::task::TaskGroup;
use rowlock_metrics::Metrics;

use super::errors::StartError;
use super::open::Assembly;
use crate::config::NodeConfig;
use crate::node::admin::{NotBuilt, ReportSource};
use crate::node::apply::Observer;
use crate::node::delivery::registry::Registry;
use crate::node::zk::ClientContext;

pub(super) struct Listeners;

impl Listeners {
    pub(super) async fn bind(config: &NodeConfig) -> Result<Listeners, StartError> {
        let settings = [
            (config.api_addr.is_some(), "api"),
            (config.http.api, "api in [http]"),
            (config.http.token_file.is_some(), "token_file in [http]"),
        ];
        match settings.into_iter().find(|(is_set, _)| *is_set) {
            Some((_, setting)) => Err(StartError::NotBuilt { setting, feature: "access" }),
            None => Ok(Listeners),
        }
    }
}

/// Tokens are for HTTP only.
#[derive(Clone)]
pub(super) struct Tokens;

pub(super) async fn open_tokens(_: &NodeConfig) -> Result<Tokens, StartError> {
    Ok(Tokens)
}

pub(super) struct AccessFloor;

impl AccessFloor {
    pub(super) async fn open(
        _: &NodeConfig,
        _: Arc<Metrics>,
        _: (&Arc<Registry>, &Arc<LogClock>, &TaskGroup),
    ) -> AccessFloor {
        AccessFloor
    }

    pub(super) fn observers(&self) -> [Arc<dyn Observer>; 0] {
        []
    }

    pub(super) fn reports(&self) -> Arc<dyn ReportSource> {
        Arc::new(NotBuilt)
    }

    pub(super) fn start(&self, _: &TaskGroup) {}

    pub(super) async fn close(self) {}
}

pub(super) struct Handles;

impl Handles {
    pub(super) fn reload_files_soon(&self) -> bool {
        false
    }
}

impl Assembly {
    pub(super) fn start_access(&self, _: Listeners, _: ClientContext) -> Handles {
        let Tokens = self.trust.tokens;
        Handles
    }
}
