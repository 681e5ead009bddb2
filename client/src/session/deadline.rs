//! Until when a session is certainly alive: the local deadline.
//!
//! The server counts the timeout from a heartbeat's *arrival*; we count it from the *sending* of the last heartbeat
//! that was acknowledged, and stop a margin earlier. So whatever the network did, we know of the loss before the server
//! can grant our locks to others.
//!
//! The margin is a tenth of the timeout. It covers clocks whose *rates* differ by up to 5 % (ours slow or the server's
//! fast; jumps of the wall clock do not matter) and the rest, 5 % of the timeout, the time until our code runs. Only
//! heartbeats and the handshake count, not other requests: a Rowlock server confirms a heartbeat with the leader before
//! it answers, while it answers reads by itself. (Apache's followers report heartbeats to their leader every half tick;
//! there, choose session timeouts of at least five ticks, so that the margin covers that as well.)

use std::time::Duration;

use rowlock_env::time::Instant;

/// The part of the timeout that is given up for safety: one in so many.
const MARGIN_DIVISOR: u32 = 10;

/// The local deadline of one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    timeout: Duration,
    /// Send time of the latest acknowledged heartbeat or handshake.
    acknowledged: Instant,
}

impl Deadline {
    pub(crate) fn new(timeout: Duration, handshake_sent: Instant) -> Self {
        Deadline { timeout, acknowledged: handshake_sent }
    }

    /// A heartbeat (or handshake) sent at `sent` was acknowledged. Never moves the deadline back.
    pub(crate) fn acknowledge(&mut self, sent: Instant) {
        self.acknowledged = self.acknowledged.max(sent);
    }

    /// A server renegotiated the timeout.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The first instant at which the session must be taken for lost.
    pub(crate) fn valid_until(&self) -> Instant {
        self.acknowledged + (self.timeout - self.timeout / MARGIN_DIVISOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_counts_from_the_sending_and_leaves_a_margin() {
        let sent = Instant::now();
        let mut it = Deadline::new(Duration::from_secs(10), sent);
        assert_eq!(it.valid_until(), sent + Duration::from_secs(9));
        it.acknowledge(sent + Duration::from_secs(3));
        assert_eq!(it.valid_until(), sent + Duration::from_secs(12));
        it.acknowledge(sent + Duration::from_secs(1));
        assert_eq!(it.valid_until(), sent + Duration::from_secs(12), "an old acknowledgement moved it back");
    }

    #[test]
    fn lost_is_declared_before_the_server_expires_the_session_with_clock_rates_five_percent_apart() {
        let sent = Instant::now();
        for timeout_ms in [100, 4_000, 10_000, 40_000] {
            let timeout = Duration::from_millis(timeout_ms);
            let ours = Deadline::new(timeout, sent).valid_until() - sent;
            // Our clock is 5 % slow: in true time it takes longer. The heartbeat arrived the moment it was sent.
            assert!(ours.mul_f64(1.0 / 0.95) < timeout);
            // The server's clock is 5 % fast.
            assert!(ours < timeout.mul_f64(1.0 / 1.05));
        }
    }
}
