//! Until when a session is certainly alive: the local deadline.
//!
//! The server counts the timeout from a heartbeat's *arrival*; we count it from the *sending* of the last
//! heartbeat that was acknowledged, and stop a margin earlier. So whatever the network did, we know of the
//! loss before the server can grant our locks to others.
//!
//! The margin is a tenth of the timeout. It covers clocks whose *rates* differ by up to `CLOCK_RATE_BOUND`
//! (ours slow or the server's fast; jumps of the wall clock do not matter) and the rest, half of it, the time
//! until our code runs. Only heartbeats and the handshake count, not other requests: a Rowlock server
//! confirms a heartbeat with the leader before it answers, while it answers reads by itself. (Apache's
//! followers report heartbeats to their leader every half tick; there, choose session timeouts of at least
//! five ticks, so that the margin covers that as well.)
//!
//! With a *disconnect grace* the server ends the session already so long after it saw our socket close. It
//! cannot have seen that before we knew of it (that is what a proxy between us must not do), so while we are
//! cut off the deadline is at most the loss of the connection plus the grace, less a tenth of the grace.

use std::time::Duration;

use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::Instant;

/// The safety margin of a time: this fraction of it.
const MARGIN_DIVISOR: u32 = 10;

/// Largest difference of the rates of our clock and the servers', as a fraction, under which the promise
/// holds.
#[cfg(test)]
const CLOCK_RATE_BOUND: f64 = 0.05;

/// The local deadline of one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// The session timeout less the margin.
    lasts: Duration,
    /// Send time of the latest acknowledged heartbeat or handshake.
    acknowledged: Instant,
    /// While we are cut off: when the grace is over.
    grace_ends: Option<Instant>,
}

impl Deadline {
    pub(crate) fn new(timeout: Duration, handshake_sent: Instant) -> Self {
        Deadline { lasts: less_margin(timeout), acknowledged: handshake_sent, grace_ends: None }
    }

    /// A heartbeat sent at `sent` was acknowledged. Never moves the deadline back.
    pub(crate) fn acknowledge(&mut self, sent: Instant) {
        self.acknowledged = self.acknowledged.max(sent);
    }

    /// A server accepted the session again, with this timeout; the handshake was sent at `sent`.
    pub(crate) fn attached(&mut self, timeout: Duration, sent: Instant) {
        self.lasts = less_margin(timeout);
        self.grace_ends = None;
        self.acknowledge(sent);
    }

    /// Records the loss of a connection at `now` whose server knew the grace.
    pub(crate) fn cut_off(&mut self, now: Instant, grace: Duration) {
        self.grace_ends = Some(now + less_margin(grace));
    }

    /// First instant at which the client must treat the session as lost.
    pub(crate) fn valid_until(&self) -> Instant {
        if mutant::is(Mutant::IgnoreDeadline) {
            return self.acknowledged + Duration::from_secs(3_600);
        }
        let by_heartbeat = self.acknowledged + self.lasts;
        self.grace_ends.map_or(by_heartbeat, |by_grace| by_grace.min(by_heartbeat))
    }
}

fn less_margin(time: Duration) -> Duration {
    time - time / MARGIN_DIVISOR
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
    fn a_grace_ends_the_session_sooner_while_cut_off_and_never_later() {
        let sent = Instant::now();
        let at = |s| sent + Duration::from_secs(s);
        let mut it = Deadline::new(Duration::from_secs(10), sent);
        it.cut_off(at(2), Duration::from_secs(2));
        assert_eq!(it.valid_until(), at(2) + Duration::from_millis(1_800));
        it.attached(Duration::from_secs(10), at(3));
        assert_eq!(it.valid_until(), at(12));
        it.cut_off(at(4), Duration::from_secs(100));
        assert_eq!(it.valid_until(), at(12));
    }

    #[test]
    fn lost_is_declared_before_the_server_expires_the_session_with_clock_rates_five_percent_apart() {
        let sent = Instant::now();
        for timeout_ms in [100, 4_000, 10_000, 40_000] {
            let timeout = Duration::from_millis(timeout_ms);
            let by_heartbeat = Deadline::new(timeout, sent).valid_until() - sent;
            let mut cut_off = Deadline::new(timeout * 100, sent);
            cut_off.cut_off(sent, timeout);
            for ours in [by_heartbeat, cut_off.valid_until() - sent] {
                // Our clock is slow: in true time it takes longer. The heartbeat arrived the moment it was
                // sent.
                assert!(ours.mul_f64(1.0 / (1.0 - CLOCK_RATE_BOUND)) < timeout);
                // The server's clock is fast.
                assert!(ours < timeout.mul_f64(1.0 / (1.0 + CLOCK_RATE_BOUND)));
            }
        }
    }
}
