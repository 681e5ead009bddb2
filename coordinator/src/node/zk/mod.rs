//! The door for ZooKeeper clients: listener, handshake, one task per connection, four-letter words.
//!
//! In the flow: bytes come in, frames become requests; writes go to the proposer, reads are answered from the
//! local replica; replies, answers and watch events leave in the order that the protocol promises. Apply
//! reaches connections only through their outbox, by way of
//! [`Dispatcher`](crate::delivery::events::Dispatcher) and [`Registry`].
//!
//! Must never do: change the replicated state, decide about a session's life, or make apply wait for a
//! client.

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

use crate::admin::Admin;
use crate::audit::Audit;
use crate::config::NodeConfig;
use crate::delivery::registry::Registry;
use crate::proposer::Proposer;
use crate::replica::Replica;
use crate::slow::SlowRequests;
use read_only::Isolation;
use rowlock_sessions::SessionTouch;

/// Dependencies of the listener and its connections.
#[derive(Clone)]
pub struct ClientContext {
    /// The local state, for reads, and the watches on it.
    pub replica: Arc<Replica>,
    pub proposer: Proposer,
    /// Takes questions for reports, and what superusers want.
    pub admin: Arc<dyn Admin>,
    /// Whether one more session may be opened.
    pub new_sessions: Arc<NewSessions>,
    /// Takes signs of life.
    pub touch: SessionTouch,
    /// Whether clients may be served, and what the words tell about the node.
    pub status: watch::Receiver<Status>,
    /// Whether reads are served without a quorum.
    pub isolation: Arc<Isolation>,
    /// Whom to tell when sessions end or move; shared with apply.
    pub registry: Arc<Registry>,
    /// Bounds of session timeouts, number of connections, words, superDigest.
    pub config: Arc<NodeConfig>,
    /// Records who has done what.
    pub audit: Audit,
    /// Tells of requests that took long.
    pub slow: Arc<SlowRequests>,
    /// Counts what happens here.
    pub metrics: Arc<Metrics>,
}
