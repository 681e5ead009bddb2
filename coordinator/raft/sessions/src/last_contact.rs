//! Time of this node's last contact to a quorum.
//!
//! The leader learns the time from Raft; a follower learns the time from the leader's answers to reports, and
//! the leader answers only while in contact. A node without contact answers no heartbeat, expires no session
//! and serves no new client.

use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};

#[derive(Debug, Default)]
pub struct LastContact {
    last: Mutex<Option<Instant>>,
}

impl LastContact {
    /// Records contact at `at`. The recorded time never moves back.
    pub fn mark(&self, at: Instant) {
        let mut last = self.last.lock();
        *last = (*last).max(Some(at));
    }

    /// Returns the time since the last contact; `None` before the first.
    pub fn age(&self) -> Option<Duration> {
        self.last.lock().map(|at| time::now().saturating_since(at))
    }

    pub fn within(&self, age: Duration) -> bool {
        let age = if mutant::is(Mutant::ServeWithoutQuorum) { Duration::MAX } else { age };
        self.last
            .lock()
            .is_some_and(|at| decides!("leader-contact-is-recent", time::now().saturating_since(at) <= age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_ages_and_never_moves_back() {
        let contact = LastContact::default();
        assert!(!contact.within(Duration::from_secs(1000)));
        let now = Instant::now();
        contact.mark(now - Duration::from_secs(10));
        assert!(!contact.within(Duration::from_secs(5)));
        contact.mark(now);
        contact.mark(now - Duration::from_secs(10));
        assert!(contact.within(Duration::from_secs(5)));
    }
}
