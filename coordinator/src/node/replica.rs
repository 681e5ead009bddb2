//! The local replica: the applied state and the watches on it, behind one lock order.
//!
//! Invariant: lock order is `state` before `watches`; neither is held across an await. Invariant: events of a
//! change are in the connections' outboxes before the write lock that made it is released, so a reader of
//! the new state finds the events there (guarantee: event-before-reply).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rowlock_consensus::applied_state::AppliedState;
use rowlock_types::versions::Versions;

use crate::delivery::watch::WatchTable;

/// Shared by apply (the only writer) and all connections (readers).
#[derive(Default)]
pub struct Replica {
    applied: Arc<AppliedState>,
    /// Which connection watches what.
    pub watches: Mutex<WatchTable>,
    /// How often the status task has looked at everything: it stands still with the locks above.
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
