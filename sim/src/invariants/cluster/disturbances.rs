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

    /// Counts the resets since `from`: each may be of a connection that only the node has lost, and on which
    /// the client waits for an answer.
    pub fn hidden_resets(&self, from: Nanos, to: Nanos) -> usize {
        self.resets.iter().filter(|at| (from..=to).contains(at)).count()
    }

    /// Reports whether nothing but load is wrong between `from` and `to`.
    pub fn spare(&self, from: Nanos, to: Nanos) -> bool {
        self.times.iter().all(|(begins, ends)| *ends < from || to < *begins)
    }
}
