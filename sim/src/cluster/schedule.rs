//! What is to be done to the world, and when: the steps of the script, and the ends of their faults.

use std::collections::BTreeMap;

use rowlock_world::time::Nanos;

/// Things to do, ordered by time; those of one time in the order in which they were added.
#[derive(Debug)]
pub struct Schedule<T> {
    entries: BTreeMap<(Nanos, u64), T>,
    serial: u64,
}

impl<T> Schedule<T> {
    pub fn new() -> Self {
        Schedule { entries: BTreeMap::new(), serial: 0 }
    }

    /// To be done at `at`.
    pub fn add(&mut self, at: Nanos, what: T) {
        self.serial += 1;
        self.entries.insert((at, self.serial), what);
    }

    pub fn next(&self) -> Option<Nanos> {
        self.entries.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next item that is due by `now`.
    pub fn take_due(&mut self, now: Nanos) -> Option<T> {
        let entry = self.entries.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
