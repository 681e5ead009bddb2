//! Times at which something other than load is wrong, or was wrong a moment ago.

use rowlock_world::time::Nanos;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disturbances {
    /// Intervals of true time, both ends included.
    times: Vec<(Nanos, Nanos)>,
    /// Resets of connections of clients, of which only the node may know.
    resets: Vec<Nanos>,
}

impl Disturbances {
    pub fn new(times: Vec<(Nanos, Nanos)>, resets: Vec<Nanos>) -> Self {
        Disturbances { times, resets }
    }

    /// Reports whether a client may wait for the answer to a request of `from` on a connection that the node
    /// has lost.
    pub fn hide_reset(&self, from: Nanos, to: Nanos) -> bool {
        self.resets.iter().any(|at| (from..=to).contains(at))
    }

    /// Reports whether nothing but load is wrong between `from` and `to`.
    pub fn spare(&self, from: Nanos, to: Nanos) -> bool {
        self.times.iter().all(|(begins, ends)| *ends < from || to < *begins)
    }
}
