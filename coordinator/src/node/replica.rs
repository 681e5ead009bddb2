//! Local replica: the applied state and its watches, with one lock order.
//!
//! Invariant: lock order is `state` before `watches`; no await happens under either lock. Invariant: events
//! of a change are in the connections' outboxes before the state's write lock is released, so a reader of the
//! new state finds the events in its outbox (guarantee: event-before-reply).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rowlock_consensus::applied_state::AppliedState;
use rowlock_state::version::Versions;

use crate::node::delivery::watch::WatchTable;

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
