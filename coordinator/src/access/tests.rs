//! A node for tests with the floor `access` on it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::log_clock::LogClock;
use rowlock_history::History;

use crate::access::api::Api;
use crate::access::lock_feed::LockFeed;
use crate::access::report::{Backups, Reports};
use crate::config::NodeConfig;
use crate::limits;
use crate::node::zk::ClientContext;
use crate::node::zk::tests::node::{self, Around};

/// As the node of `zk/tests`, with reports and a feed of its locks. It keeps no history.
pub(crate) struct Node {
    node: node::Node,
    pub(crate) reports: Reports,
    feed: Arc<LockFeed>,
}

impl Deref for Node {
    type Target = node::Node;

    fn deref(&self) -> &node::Node {
        &self.node
    }
}

impl AsRef<str> for Node {
    fn as_ref(&self) -> &str {
        &self.addr
    }
}

impl Node {
    pub(crate) async fn start() -> Node {
        Node::with(node::config(), "127.0.0.1:0", limits::HANDSHAKE_MAX).await
    }

    pub(crate) async fn with(config: NodeConfig, addr: &str, handshake_max: Duration) -> Node {
        let around = Around::new();
        let (clock, backups) =
            (Arc::new(LogClock::starting_now()), Backups::new(std::env::temp_dir(), "test".to_owned()));
        let (registry, tasks) = (around.registry.clone(), around.tasks.clone());
        let reports = Reports::new(History::default(), registry, clock, backups, tasks);
        let feed = Arc::new(LockFeed::default());
        let around = Around { reports: Arc::new(reports.clone()), observers: vec![feed.clone()], ..around };
        Node { node: node::Node::amid(around, config, addr, handshake_max).await, reports, feed }
    }

    pub(crate) fn api(&self) -> Api {
        self.api_of(self.context.clone())
    }

    pub(crate) fn api_of(&self, context: ClientContext) -> Api {
        Api::new(context, self.reports.clone(), self.feed.clone())
    }

    /// What an API is made of.
    pub(crate) fn parts(&self) -> (ClientContext, Reports, Arc<LockFeed>) {
        (self.context.clone(), self.reports.clone(), self.feed.clone())
    }

    pub(crate) async fn stop(self) {
        self.node.stop().await;
    }
}
