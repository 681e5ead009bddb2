//! This node's side: takes its clients' writes and brings them to the leader, in order.
//!
//! While no leader is known nothing is taken from the queue, so connections feel it as back-pressure. Whenever the
//! leader or the way to it changes, the outcome of everything on the way cannot be known any more, and everybody who
//! waits is told so (`Message::Lost`); their clients come back and look.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::command::Proposal;
use tokio::sync::mpsc;

use super::Submission;
use super::fold::Parcel;
use super::pending::Pending;
use crate::limits::BATCH_MAX_COMMANDS;
use crate::metrics::Metrics;
use crate::peer::{ForwardEvent, ForwardLink, PeerPool};
use crate::raft::leadership::Leadership;

/// The task that routes. Ends with the shutdown.
pub struct Router {
    /// This node.
    pub me: NodeId,
    /// From the connections.
    pub submissions: mpsc::Receiver<Submission>,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Who waits.
    pub pending: Arc<Pending>,
    /// The way to this node's own folder.
    pub folder: mpsc::Sender<Parcel>,
    /// The ways to the other nodes.
    pub peers: PeerPool,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Pause after a refusal, until the views of the nodes agree again.
const AFTER_REFUSAL: Duration = Duration::from_millis(20);
