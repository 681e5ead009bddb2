//! Schedule of the script's steps and of the ends of their faults.

use std::collections::BTreeMap;

use rowlock_world::time::Nanos;

/// Actions ordered by time; actions due at the same time keep the order of their addition.
#[derive(Debug)]
pub struct Schedule<T> {
    entries: BTreeMap<(Nanos, u64), T>,
    serial: u64,
}

impl<T> Schedule<T> {
    pub fn new() -> Self {
        Schedule { entries: BTreeMap::new(), serial: 0 }
    }

    /// Adds an action due at `at`.
    pub fn add(&mut self, at: Nanos, what: T) {
        self.serial += 1;
        self.entries.insert((at, self.serial), what);
    }

    pub fn next(&self) -> Option<Nanos> {
        self.entries.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next action due by `now`.
    pub fn take_due(&mut self, now: Nanos) -> Option<T> {
        let entry = self.entries.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
