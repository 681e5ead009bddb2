//! Liveness of a connection's client, and the schedule of keepalives to the leader. Pure: time comes in,
//! orders go out.
//!
//! Any frame is a sign of life, but a keepalive per frame would wake the liveness task once per request. So
//! frames within a short interval result in a single keepalive, at the end of the interval: later than the
//! frames, never earlier, so no session expires before its timeout.

use std::time::Duration;

use rowlock_env::decides;
use rowlock_env::time::Instant;

/// Maximum delay of a keepalive.
const KEPT_BACK_MAX: Duration = Duration::from_millis(100);
/// Divisor of the session timeout that bounds the delay, too.
const KEPT_BACK_PART: u32 = 20;

/// A session timeout, in four bytes instead of a `Duration`'s sixteen: each connection has a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionTimeout {
    ms: u32,
}

impl SessionTimeout {
    pub(super) const NONE: SessionTimeout = SessionTimeout { ms: 0 };

    pub(super) fn as_millis(self) -> u32 {
        self.ms
    }
}

impl From<Duration> for SessionTimeout {
    fn from(timeout: Duration) -> Self {
        SessionTimeout { ms: u32::try_from(timeout.as_millis()).expect("clamped to a bound of 32 bits") }
    }
}

impl From<SessionTimeout> for Duration {
    fn from(timeout: SessionTimeout) -> Self {
        Duration::from_millis(u64::from(timeout.ms))
    }
}

#[derive(Debug)]
pub(super) struct LivenessTimer {
    timeout: SessionTimeout,
    heard: Instant,
    touched: Instant,
    /// Set by frames after `touched`.
    owed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Rest,
    /// Send the leader a keepalive.
    Touch,
    /// The client was silent for the whole session timeout: close.
    Close,
}

impl LivenessTimer {
    /// Starts with the attachment of the session, which restarted the leader's timer.
    pub(super) fn new(timeout: SessionTimeout, now: Instant) -> Self {
        LivenessTimer { timeout, heard: now, touched: now, owed: false }
    }

    fn timeout(&self) -> Duration {
        self.timeout.into()
    }

    /// Returns the minimum time between two keepalives.
    fn interval(&self) -> Duration {
        KEPT_BACK_MAX.min(self.timeout() / KEPT_BACK_PART)
    }

    pub(super) fn heard(&mut self, now: Instant) -> Order {
        self.heard = now;
        self.owed = true;
        self.touch_if_due(now)
    }

    /// Restarts the timeout: the client waits for this node, so silence proves nothing.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn tick(&mut self, now: Instant) -> Order {
        if decides!("connection-is-silent", now >= self.heard + self.timeout()) {
            Order::Close
        } else {
            self.touch_if_due(now)
        }
    }

    /// Returns the time of the next [`Self::tick`]. Only [`Self::heard`] moves it earlier.
    pub(super) fn wake_at(&self) -> Instant {
        let silence = self.heard + self.timeout();
        if self.owed { silence.min(self.touched + self.interval()) } else { silence }
    }

    /// Returns the last order at the end of the connection: an outstanding keepalive, if any.
    pub(super) fn leave(self) -> Order {
        if self.owed { Order::Touch } else { Order::Rest }
    }

    fn touch_if_due(&mut self, now: Instant) -> Order {
        if decides!("touch-is-not-due", !self.owed || now < self.touched + self.interval()) {
            return Order::Rest;
        }
        self.touched = now;
        self.owed = false;
        Order::Touch
    }
}

/// Unanswered pings of one connection.
///
/// A ping may be answered only after a restart of the session's timer at the leader, later than the ping's
/// arrival: clients compute from the reply how long their session is certain to live. The connection requests
/// a single confirmation at a time; pings that arrive meanwhile need the next confirmation.
#[derive(Debug, Default)]
pub(super) struct Pings {
    /// Pings received before the outstanding confirmation was requested.
    covered: u32,
    later: u32,
}

/// Request a confirmation from the leader now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskConfirmation;

impl Pings {
    pub(super) fn received(&mut self) -> Option<AskConfirmation> {
        if self.covered > 0 {
            self.later += 1;
            return None;
        }
        self.covered = 1;
        Some(AskConfirmation)
    }

    /// Handles a confirmation. Returns the number of pings to answer, and whether to request the next
    /// confirmation.
    pub(super) fn confirmed(&mut self) -> (u32, Option<AskConfirmation>) {
        let answered = std::mem::replace(&mut self.covered, std::mem::take(&mut self.later));
        (answered, (self.covered > 0).then_some(AskConfirmation))
    }

    pub(super) fn len(&self) -> usize {
        self.covered as usize + self.later as usize
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_interval_with_frames_yields_one_keepalive() {
        let start = time::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timer = LivenessTimer::new((10 * SECOND).into(), start);
        assert_eq!(timer.wake_at(), start + 10 * SECOND);
        assert_eq!(timer.heard(at(10)), Order::Rest);
        assert_eq!(timer.heard(at(20)), Order::Rest);
        assert_eq!(timer.wake_at(), at(100));
        assert_eq!(timer.tick(at(99)), Order::Rest);
        assert_eq!(timer.tick(at(100)), Order::Touch);
        assert_eq!(timer.wake_at(), at(20) + 10 * SECOND);
        assert_eq!(timer.heard(at(5_000)), Order::Touch);
        assert_eq!(timer.wake_at(), at(15_000));
        assert_eq!(timer.heard(at(5_001)), Order::Rest);
        assert_eq!(timer.leave(), Order::Touch);
    }

    #[test]
    fn short_timeouts_shorten_the_interval() {
        let start = time::now();
        let mut timer = LivenessTimer::new(SECOND.into(), start);
        timer.heard(start);
        assert_eq!(timer.wake_at(), start + Duration::from_millis(50));
    }

    #[test]
    fn silence_for_the_whole_timeout_closes_unless_it_is_excused() {
        let start = time::now();
        let mut timer = LivenessTimer::new(SECOND.into(), start);
        assert_eq!(timer.tick(start + SECOND / 2), Order::Rest);
        timer.excuse(start + SECOND / 2);
        assert_eq!(timer.tick(start + SECOND), Order::Rest);
        assert_eq!(timer.tick(start + SECOND + SECOND / 2), Order::Close);
    }

    #[test]
    fn a_ping_is_answered_only_by_a_confirmation_asked_for_after_it() {
        let mut pings = Pings::default();
        assert_eq!(pings.received(), Some(AskConfirmation));
        assert_eq!(pings.received(), None);
        assert_eq!(pings.received(), None);
        assert_eq!(pings.confirmed(), (1, Some(AskConfirmation)));
        assert_eq!(pings.confirmed(), (2, None));
        assert_eq!(pings.confirmed(), (0, None));
        assert_eq!(pings.received(), Some(AskConfirmation));
        assert_eq!(pings.len(), 1);
    }
}
