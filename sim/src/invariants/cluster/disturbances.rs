//! Times at which something other than load is wrong, or was wrong a moment ago.

use rowlock_world::time::Nanos;

/// Intervals of true time, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disturbances(Vec<(Nanos, Nanos)>);

impl Disturbances {
    pub fn new(times: Vec<(Nanos, Nanos)>) -> Self {
        Disturbances(times)
    }

    /// Reports whether nothing but load is wrong between `from` and `to`.
    pub fn spare(&self, from: Nanos, to: Nanos) -> bool {
        self.0.iter().all(|(begins, ends)| *ends < from || to < *begins)
    }
}
