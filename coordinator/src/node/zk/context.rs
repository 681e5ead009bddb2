//! The node's parts that clients' connections use.

use std::sync::Arc;

use rowlock_consensus::status::Status;
use rowlock_env::sync::watch;
use rowlock_metrics::Metrics;
use rowlock_sessions::SessionTouch;

use super::new_sessions::NewSessions;
use super::read_only::Isolation;
use crate::config::NodeConfig;
use crate::node::admin::{Admin, ReportSource};
use crate::node::audit::Audit;
use crate::node::delivery::registry::Registry;
use crate::node::proposer::Proposer;
use crate::node::replica::Replica;
use crate::node::slow::SlowRequests;

/// Dependencies of the listener and its connections.
#[derive(Clone)]
pub struct ClientContext {
    /// The local state and its watches.
    pub replica: Arc<Replica>,
    pub proposer: Proposer,
    /// Accepts superusers' changes of the membership and operations.
    pub admin: Arc<dyn Admin>,
    pub reports: Arc<dyn ReportSource>,
    /// Admission of new sessions.
    pub new_sessions: Arc<NewSessions>,
    /// Accepts keepalives for the leader.
    pub touch: SessionTouch,
    /// Status of the node, for the decision to serve and for the four-letter words.
    pub status: watch::Receiver<Status>,
    /// Decision to serve reads without a quorum.
    pub isolation: Arc<Isolation>,
    /// Connections to notify when sessions end or move; shared with apply.
    pub registry: Arc<Registry>,
    /// Bounds of session timeouts, number of connections, words, superDigest.
    pub config: Arc<NodeConfig>,
    /// The node's audit log.
    pub audit: Audit,
    /// Reports requests above the slow limit.
    pub slow: Arc<SlowRequests>,
    pub metrics: Arc<Metrics>,
}
