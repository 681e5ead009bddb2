//! When the next TLS handshake may begin: clients that come back all at once must not keep the node from what
//! the cluster needs of it.

use std::time::Duration;

use rowlock_env::time::Instant;

/// How much time of handshakes may pass without a pause. Heartbeats between nodes wait meanwhile.
const BURST: Duration = Duration::from_millis(50);

/// The pace of one listener.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The time that is set aside for one handshake.
    step: Duration,
    /// When all handshakes that have begun have had their time.
    done: Option<Instant>,
}

impl Pace {
    /// So many in a second, and a twentieth of that at once.
    pub(crate) fn new(per_second: u32) -> Self {
        Pace { step: Duration::from_secs(1) / per_second, done: None }
    }

    /// How long a handshake that comes `now` has to wait. `None`: longer than `most`.
    pub(crate) fn take(&mut self, now: Instant, most: Duration) -> Option<Duration> {
        let done = self.done.map_or(now, |done| done.max(now)) + self.step;
        let wait = done.saturating_since(now).saturating_sub(BURST);
        if wait >= most {
            return None;
        }
        self.done = Some(done);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;

    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_a_thousand_a_second_and_none_too_late() {
        let (now, most) = (time::now(), Duration::from_secs(1));
        let mut pace = Pace::new(1_000);
        let waits: Vec<_> = (0..2_000).map_while(|_| pace.take(now, most)).collect();
        assert_eq!(waits.len(), 1_049, "those of a second, and the burst");
        assert!(waits[..50].iter().all(Duration::is_zero));
        assert_eq!(waits[50], Duration::from_millis(1));
        assert_eq!(pace.take(now, most), None);
        assert_eq!(pace.take(now + most, most), Some(Duration::ZERO));
    }
}
