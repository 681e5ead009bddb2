//! Wires the floor `access` to a node: history, reports, tokens, HTTP. `without_access.rs` stands here in a
//! build without that feature.

use std::sync::Arc;

use rowlock_consensus::log_clock::LogClock;
use rowlock_env::net::Listener;
use rowlock_env::task::TaskGroup;
use rowlock_env::{time, worker};
use rowlock_history::{History, HistorySink};
use rowlock_proto::ErrorCode;
use rowlock_state::command::Proposal;
use rowlock_state::outcome::{EventContext, LockEvent};
use rowlock_state::{Frozen, Machine};
use rowlock_types::metrics::Metrics;

use super::parts::Parts;
use super::source::Source;
use super::tokens;
use super::wiring::Wires;
use super::{Node, StartError, bind};
use crate::admin::{Admin, Ask, Reader};
use crate::api::Api;
use crate::apply::Observer;
use crate::config::NodeConfig;
use crate::delivery::registry::Registry;
use crate::http::api::{ApiContext, Direct};
use crate::http::{self, HttpAddresses, HttpContext, LeaderView};
use crate::lock_feed::LockFeed;
use crate::report::{Backups, Reports, Requester, Viewer};
use crate::zk::ClientContext;

pub(super) use super::tokens::{Tokens, open as open_tokens};

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
        let start = move || History::start(&node, settings, metrics);
        let (history, sink) = worker::run_blocking("history-look", start).await;
        let backups = Backups::new(config.data_dir.clone(), config.name.clone());
        let reports = Reports::new(history.clone(), registry.clone(), clock.clone(), backups, tasks.clone());
        AccessFloor { history, sink, feed: Arc::default(), reports: reports.guarded(config.guards_locks()) }
    }

    pub(super) fn observers(&self) -> [Arc<dyn Observer>; 2] {
        [self.feed.clone(), Arc::new(Recorded(self.sink.clone()))]
    }

    pub(super) fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.reports.clone())
    }

    pub(super) fn start(&self, tasks: &TaskGroup) {
        tasks.spawn_until_shutdown("history", self.history.clone().keep_trimmed());
    }

    pub(super) async fn close(self) {
        self.history.close().await;
    }
}

impl Admin for Reports {
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
    api: Option<Direct>,
}

impl Handles {
    /// Has the file of tokens looked at now. Whether there is one.
    pub(super) fn reload_files_soon(&self) -> bool {
        self.tokens.as_ref().inspect(|keeper| keeper.reload_soon()).is_some()
    }
}

impl Node {
    /// Locks by HTTP, past the listener: only in a simulated world, which has none.
    #[doc(hidden)]
    pub fn api(&self) -> Option<Direct> {
        self.access.api.clone()
    }
}

impl Parts {
    pub(super) fn start_access(
        &self,
        wires: &Wires,
        (listeners, tokens): (Listeners, Tokens),
        clients: ClientContext,
    ) -> Handles {
        let api = self.start_http(wires, listeners, clients);
        self.start_tokens();
        Handles { tokens, api }
    }

    /// In a simulated world nothing is started: there requests come by what is returned.
    fn start_http(&self, wires: &Wires, listeners: Listeners, clients: ClientContext) -> Option<Direct> {
        let context = HttpContext {
            metrics: self.metrics.clone(),
            status: wires.status.clone(),
            source: Arc::new(Source { replica: self.replica.clone(), registry: self.registry.clone() }),
            reports: self.access.reports.clone(),
            hosts: wires.config.http_hosts(),
            access: Arc::new(self.http_access(&wires.config)),
            nodes: HttpAddresses::of(&wires.config),
            elections: http::Elections::start(&self.tasks, wires.status.clone()),
            leader_view: LeaderView::start(&self.tasks, self.peers.clone(), wires.status.clone()),
            started: time::now(),
            turnstile: self.registry.turnstile.clone(),
        };
        let api = Arc::new(Api::new(clients, self.access.reports.clone(), self.access.feed.clone()));
        let keeper = self.trust.tls.clone().filter(|_| wires.config.http.tls);
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
        if wires.config.http.api {
            self.tasks.spawn("http", http::api::serve(listener, api_context, true, keeper, shutdown));
        } else {
            self.tasks.spawn("http", http::serve(listener, context, keeper, shutdown));
        }
        None
    }

    fn http_access(&self, config: &NodeConfig) -> http::Access {
        let superusers = config.client.x509_superusers.clone();
        http::Access::new(config.http.is_closed(), self.trust.tokens.clone(), superusers)
            .recorded_in(self.trust.audit.handle.clone())
    }

    /// Reads the tokens again when their file changes.
    fn start_tokens(&self) {
        let Some(keeper) = self.trust.tokens.clone() else { return };
        let metrics = self.metrics.clone();
        self.tasks.spawn_until_shutdown("token-file", async move {
            let reader = keeper.clone();
            let on_reload = |reloaded| tokens::report(&keeper, &metrics, reloaded);
            keeper.run("token-file", move || reader.reload(), on_reload).await;
        });
    }
}
