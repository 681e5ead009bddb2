//! Wires the floor `access` to a node: history, reports, tokens, HTTP. `without_access.rs` stands here in a
//! build without that feature.

use std::sync::Arc;

use rowlock_consensus::log_clock::LogClock;
use rowlock_env::net::Listener;
use rowlock_env::reload::Reloaded;
use rowlock_env::task::TaskGroup;
use rowlock_env::{time, worker};
use rowlock_history::{History, HistorySink, Retention};
use rowlock_metrics::Metrics;
use rowlock_proto::ErrorCode;
use rowlock_state::command::Proposal;
use rowlock_state::outcome::{EventContext, LockEvent};
use rowlock_state::{Frozen, Machine};

use super::errors::StartError;
use super::open::{Assembly, bind};
use crate::access::api::Api;
use crate::access::http::api::{ApiContext, Direct};
use crate::access::http::{self, HttpAddresses, HttpContext, LeaderView, StateView, StatusSource};
use crate::access::lock_feed::LockFeed;
use crate::access::report::{Backups, Reports, Requester, Viewer};
use crate::access::tokens::{self, TokenKeeper};
use crate::config::NodeConfig;
use crate::node::admin::{Ask, Reader, ReportSource};
use crate::node::apply::Observer;
use crate::node::context::NodeContext;
use crate::node::delivery::registry::Registry;
use crate::node::zk::ClientContext;

pub(super) struct Listeners {
    pub(super) http: Listener,
    pub(super) api: Option<Listener>,
}

impl Listeners {
    pub(super) async fn bind(config: &NodeConfig) -> Result<Listeners, StartError> {
        let http = bind(&config.http_addr, "HTTP").await?;
        let api = match &config.api_addr {
            Some(address) => Some(bind(address, "locks by HTTP").await?),
            None => None,
        };
        Ok(Listeners { http, api })
    }
}

/// Storage and memory of the floor, there before the first task runs.
pub(super) struct AccessFloor {
    history: History,
    sink: Arc<dyn HistorySink>,
    feed: Arc<LockFeed>,
    reports: Reports,
}

/// Passes what is applied on to the history.
struct Recorded(Arc<dyn HistorySink>);

impl Observer for Recorded {
    fn lock(&self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        self.0.lock(event, context);
    }

    fn applied(&self, _: u64, _: &[Proposal], _: &Machine) {
        self.0.applied();
    }

    fn frozen(&self, machine: &Machine) {
        self.0.frozen(machine.last_zxid());
    }

    fn installed(&self, machine: &Machine) {
        self.0.installed(machine.last_zxid(), machine.time_ms());
    }
}

impl AccessFloor {
    /// Looks for the history in the data folder.
    pub(super) async fn open(
        config: &NodeConfig,
        metrics: Arc<Metrics>,
        (registry, clock, tasks): (&Arc<Registry>, &Arc<LogClock>, &TaskGroup),
    ) -> AccessFloor {
        let (node, settings) = (config.data_dir.clone(), config.history);
        let retention = Retention { max_age_ms: settings.max_age_ms, max_bytes: settings.max_bytes };
        let start = move || match settings.enabled {
            true => History::start(&node, retention, metrics),
            false => History::off(),
        };
        let (history, sink) = worker::run_blocking("history-look", start).await;
        let backups = Backups::new(config.data_dir.clone(), config.name.clone());
        let reports = Reports::new(history.clone(), registry.clone(), clock.clone(), backups, tasks.clone());
        AccessFloor { history, sink, feed: Arc::default(), reports: reports.guarded(config.guards_locks()) }
    }

    pub(super) fn observers(&self) -> [Arc<dyn Observer>; 2] {
        [self.feed.clone(), Arc::new(Recorded(self.sink.clone()))]
    }

    pub(super) fn reports(&self) -> Arc<dyn ReportSource> {
        Arc::new(self.reports.clone())
    }

    pub(super) fn start(&self, tasks: &TaskGroup) {
        if let Some(trimming) = self.history.trimming() {
            tasks.spawn_duty("history", trimming);
        }
    }

    pub(super) async fn close(self) {
        self.history.close().await;
    }
}

impl ReportSource for Reports {
    fn report(&self, frozen: Frozen, ask: Ask<String>, reader: Reader) -> Result<(), ErrorCode> {
        let Ask { wanted, reply_to, tag } = ask;
        let Reader { who, session, address } = reader;
        let party = Requester::Sessions(address);
        let made = self.make(frozen, wanted, (Viewer { who, session }, party), tag, reply_to);
        made.map_err(|refusal| refusal.code())
    }
}

/// Doors of a running node: the routes of a simulated one, and its tokens.
pub(super) struct Handles {
    tokens: Tokens,
    pub(super) api: Option<Direct>,
}

impl Handles {
    /// Has the file of tokens looked at now. Whether there is one.
    pub(super) fn reload_files_soon(&self) -> bool {
        self.tokens.as_ref().inspect(|keeper| keeper.reload_soon()).is_some()
    }
}

impl Assembly {
    pub(super) fn start_access(&self, listeners: Listeners, clients: ClientContext) -> Handles {
        let api = self.start_http(listeners, clients);
        self.start_tokens();
        Handles { tokens: self.trust.tokens.clone(), api }
    }

    /// Starts the listeners; in a simulated world, returns the routes instead.
    fn start_http(&self, listeners: Listeners, clients: ClientContext) -> Option<Direct> {
        let (node, config) = (&self.context, &self.context.config);
        let context = HttpContext {
            metrics: node.metrics.clone(),
            status: node.status.clone(),
            source: node.clone(),
            reports: self.access.reports.clone(),
            hosts: config.http_hosts(),
            access: Arc::new(self.http_access()),
            nodes: HttpAddresses::of(config),
            elections: http::Elections::start(&self.tasks, node.status.clone()),
            leader_view: LeaderView::start(&self.tasks, node),
            started: time::now(),
            turnstile: node.registry.turnstile.clone(),
        };
        let api = Arc::new(Api::new(clients, self.access.reports.clone(), self.access.feed.clone()));
        let keeper = self.trust.tls.clone().filter(|_| config.http.tls);
        let shutdown = self.tasks.shutdown().clone();
        let api_context = ApiContext { http: context.clone(), api };
        if rowlock_env::world::is_simulated() {
            return Some(Direct::new(api_context, shutdown));
        }
        if let Some(listener) = listeners.api {
            let (context, keeper, shutdown) = (api_context.clone(), keeper.clone(), shutdown.clone());
            self.tasks.spawn("api", http::api::serve(listener, context, false, keeper, shutdown));
        }
        let listener = listeners.http;
        if config.http.api {
            self.tasks.spawn("http", http::api::serve(listener, api_context, true, keeper, shutdown));
        } else {
            self.tasks.spawn("http", http::serve(listener, context, keeper, shutdown));
        }
        None
    }

    fn http_access(&self) -> http::Access {
        let config = &self.context.config;
        let superusers = config.client.x509_superusers.clone();
        http::Access::new(config.http.is_closed(), self.trust.tokens.clone(), superusers)
            .recorded_in(self.context.audit.clone())
    }

    /// Starts the task that rereads a changed token file.
    fn start_tokens(&self) {
        let Some(keeper) = self.trust.tokens.clone() else { return };
        let metrics = self.context.metrics.clone();
        self.tasks.spawn_until_shutdown("token-file", async move {
            let reader = keeper.clone();
            let on_reload = |reloaded| report_tokens(&keeper, &metrics, reloaded);
            keeper.run("token-file", move || reader.reload(), on_reload).await;
        });
    }
}

impl StatusSource for NodeContext {
    fn freeze(&self) -> Frozen {
        self.replica.state.read().freeze()
    }

    fn state(&self) -> StateView {
        let machine = self.replica.state.read();
        let counts = machine.counts();
        StateView {
            applied_index: self.replica.applied_index(),
            zxid: machine.last_zxid(),
            digest: format!("{:016x}", machine.digest()),
            cluster: machine.cluster(),
            grace_ms: machine.grace_ms(),
            sessions: counts.sessions,
            znodes: counts.znodes,
            ephemerals: counts.ephemerals,
            watches: self.replica.watches.lock().len() as u64,
            connections: self.registry.len() as u64,
        }
    }
}

/// Keeper of the node's tokens, if it has a token file.
pub(super) type Tokens = Option<Arc<TokenKeeper>>;

pub(super) async fn open_tokens(config: &NodeConfig) -> Result<Tokens, StartError> {
    let Some(path) = config.http.token_file.clone() else { return Ok(None) };
    let opened = worker::run_blocking("token-file", move || tokens::open(path)).await;
    opened.map(|keeper| Some(Arc::new(keeper))).map_err(StartError::Tokens)
}

/// Reports the result of a check of the file.
pub(super) fn report_tokens(keeper: &TokenKeeper, metrics: &Metrics, reloaded: Reloaded<String>) {
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
