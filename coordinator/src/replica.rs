//! The local replica: the applied state and the watches on it, behind one lock order.
//!
//! Invariant: lock order is `state` before `watches`; neither is held across an await.
//! Invariant: events of a change are in the connections' outboxes before the write lock that made it is released,
//! so whoever reads the new state finds the events there (guarantee: event-before-reply).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rowlock_state::Machine;

use crate::watch::WatchTable;

/// Shared by apply (the only writer) and all connections (readers).
#[derive(Default)]
pub struct Replica {
    /// The applied state.
    pub state: RwLock<Machine>,
    /// Which connection watches what.
    pub watches: Mutex<WatchTable>,
    applied_index: AtomicU64,
}

impl Replica {
    /// Log index of the last entry with commands in `state`. Belongs to it only while its lock is held.
    pub fn applied_index(&self) -> u64 {
        self.applied_index.load(Ordering::Acquire)
    }

    /// Set by apply, which holds the write lock of `state`.
    pub fn set_applied_index(&self, index: u64) {
        self.applied_index.store(index, Ordering::Release);
    }
}
