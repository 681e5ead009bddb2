//! The times in which something other than load is wrong, or was a moment ago.

use rowlock_world::time::Nanos;

/// From and to, both included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disturbances(Vec<(Nanos, Nanos)>);

impl Disturbances {
    pub fn new(times: Vec<(Nanos, Nanos)>) -> Self {
        Disturbances(times)
    }

    /// Whether nothing but load is wrong from `from` to `to`.
    pub fn spare(&self, from: Nanos, to: Nanos) -> bool {
        self.0.iter().all(|(begins, ends)| *ends < from || to < *begins)
    }
}
