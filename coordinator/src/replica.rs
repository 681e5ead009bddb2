//! The local replica: the applied state and the watches on it, behind one lock order.
//!
//! Invariant: lock order is `state` before `watches`; neither is held across an await.
//! Invariant: events of a change are in the connections' outboxes before the write lock that made it is released,
//! so whoever reads the new state finds the events there (guarantee: event-before-reply).

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
}
