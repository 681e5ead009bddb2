//! The parts of one node that its tasks share: Raft, the replica, the disk, the connections to the other
//! nodes, and the channels between the tasks.
//!
//! In the flow: `assembly/` opens the parts before the first task runs; each task holds the context. The
//! floors `cluster` and `access` hold it as well; it knows nothing of them.
//!
//! Local replica: the applied state and its watches, with one lock order.
//!
//! Invariant: lock order is `state` before `watches`; no await happens under either lock. Invariant: events
//! of a change are in the connections' outboxes before the state's write lock is released, so a reader of the
//! new state finds the events in its outbox (guarantee: event-before-reply).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::applied_state::AppliedState;
use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::log_clock::LogClock;
use rowlock_consensus::node_hook::Hook;
use rowlock_consensus::peer::PeerPool;
use rowlock_consensus::raft::elections::Leadership;
use rowlock_consensus::raft::reconfigure::Reconfigurer;
use rowlock_consensus::raft::{Admission, LeaderLease, QuorumContact, Raft, Recollection};
use rowlock_consensus::status::Status;
use rowlock_env::sync::watch;
use rowlock_metrics::Metrics;
use rowlock_proto::NodeId;
use rowlock_sessions::SessionTouch;
use rowlock_sessions::expiry_table::ExpiryTable;
use rowlock_sessions::expiry_table::LastContact;
use rowlock_state::version::Versions;
use rowlock_wal::{Log, Reserve};
use tokio::sync::mpsc;

use crate::config::NodeConfig;
use crate::node::audit::Audit;
use crate::node::delivery::registry::Registry;
use crate::node::delivery::watch::WatchTable;
use crate::node::proposer::Proposer;
use crate::node::proposer::pending::PendingWrites;
use crate::node::slow::SlowRequests;

/// Least value of [`NodeContext::contact_max`].
const CONTACT_MAX_LEAST: Duration = Duration::from_secs(1);

pub struct NodeContext {
    pub me: NodeId,
    pub config: Arc<NodeConfig>,
    pub raft: Raft,
    pub leadership: watch::Receiver<Leadership>,
    /// Contact to the quorum and stored log index of each other node while this node leads.
    pub quorum: QuorumContact,
    /// Leader lease, ended by the end of the leader's heartbeat connection.
    pub lease: LeaderLease,
    /// Last contact of this node with a quorum, in any role.
    pub contact: Arc<LastContact>,
    /// Admission of this node as a member.
    pub admission: Admission,
    /// Memory of this node's acknowledgements.
    pub recollection: Recollection,
    /// Changes the members while this node leads.
    pub reconfigurer: Arc<Reconfigurer>,
    pub log: Log,
    /// Disk space reserved for the log.
    pub reserve: Reserve,
    pub replica: Arc<Replica>,
    /// Connections to the other nodes.
    pub peers: PeerPool,
    /// Connections of this node's clients.
    pub registry: Arc<Registry>,
    /// Writes of this node's clients without a reply yet.
    pub pending: Arc<PendingWrites>,
    /// Queue of the intake for this node's writes.
    pub proposer: Proposer,
    /// Queue of the intake for batches of a term: the leader's duties and other nodes.
    pub proposals: mpsc::Sender<TermBatch>,
    /// Queue of keepalives for the leader.
    pub touch: SessionTouch,
    /// Timers of all sessions while this node leads.
    pub expiry_table: Arc<ExpiryTable>,
    pub clock: Arc<LogClock>,
    pub status: watch::Receiver<Status>,
    /// Set before the node stops: the node serves no clients and refuses proposals, which belong to the next
    /// leader.
    pub leaving: watch::Sender<bool>,
    /// Set while an operator has drained this node, which then serves no clients.
    pub drained: watch::Sender<bool>,
    pub slow: Arc<SlowRequests>,
    pub audit: Audit,
    pub metrics: Arc<Metrics>,
    pub hook: Hook,
}

impl NodeContext {
    /// Returns the maximum age of the contact to a quorum. With an older contact a node does not serve, and a
    /// leader expires no session. Longer than an election: clients of a follower stay connected while the
    /// other nodes elect a leader.
    pub fn contact_max(&self) -> Duration {
        Duration::from_millis(self.config.raft.election_timeout_max_ms).max(CONTACT_MAX_LEAST)
    }

    /// Returns whether this node leads, and has applied the entries of earlier leaders.
    pub fn leads(&self) -> bool {
        self.leadership.borrow().is_led_by(self.me)
    }
}

/// Shared by apply (the only writer) and all connections (readers).
#[derive(Default)]
pub struct Replica {
    applied: Arc<AppliedState>,
    /// Watches of each connection.
    pub watches: Mutex<WatchTable>,
    /// Completed rounds of the status task. The counter stops if one of the locks above is stuck.
    pub rounds: AtomicU64,
}

impl Replica {
    pub fn of(versions: Versions) -> Replica {
        Replica { applied: Arc::new(AppliedState::of(versions)), ..Replica::default() }
    }

    pub fn applied(&self) -> &Arc<AppliedState> {
        &self.applied
    }
}

impl Deref for Replica {
    type Target = AppliedState;

    fn deref(&self) -> &AppliedState {
        &self.applied
    }
}
