//! ZooKeeper's protocol: listener, handshake, one task per connection, four-letter words.
//!
//! In the flow: bytes arrive and frames become requests; writes go to the proposer, the local replica answers
//! reads; replies and watch events leave in the order that the protocol promises. Apply reaches connections
//! only through their outbox, by way of [`Dispatcher`](crate::node::delivery::events::Dispatcher) and
//! [`Registry`].
//!
//! Must never change the replicated state, decide about a session's life, or make apply wait for a client.

mod announcement;
mod connection;
mod conversation;
mod end_reason;
mod four_letter_words;
mod handshake;
mod identity;
mod listener;
mod liveness_timer;
mod new_sessions;
mod pending;
mod pings;
mod read;
pub mod read_only;
pub(crate) mod reconfig;
mod sasl;
mod secure;
mod watching;
mod wire;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use rowlock_env::sync::watch;
use rowlock_types::metrics::Metrics;
use rowlock_types::status::Status;

pub use listener::{Doors, Listener, SecureDoor};
pub use new_sessions::NewSessions;
pub use new_sessions::Opener;

use crate::config::NodeConfig;
use crate::node::admin::{Admin, ReportSource};
use crate::node::audit::Audit;
use crate::node::delivery::registry::Registry;
use crate::node::proposer::Proposer;
use crate::node::replica::Replica;
use crate::node::slow::SlowRequests;
use read_only::Isolation;
use rowlock_sessions::SessionTouch;

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
