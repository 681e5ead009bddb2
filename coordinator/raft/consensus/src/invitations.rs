//! Load of this node, and invitations that send clients to the leader: a lock takes two messages less there.
//!
//! In the flow: each node measures its load ([`Invitations::measure`]). The leader's answers to reports carry
//! the number of clients per second that the reporting node may send ([`Invitations::per_second`]). The node
//! invites active clients at this pace ([`Invitations::take`]), by session (docs/protocol.md) or by HTTP
//! (docs/rest.md), and each client moves at a moment without pending work. While the leader has no room, the
//! clients stay.
//!
//! Invariant: an invitation is advice, and no guarantee depends on an invitation.

use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::busy;
use rowlock_env::decides;
use rowlock_env::rate::Bucket;
use rowlock_env::task;
use rowlock_env::time::Instant;
use rowlock_metrics::Metrics;

/// Period over which the load is measured, as accounted work.
const MEASURED_OVER: Duration = Duration::from_secs(1);
/// Load, in percent of the threads' time, below which the leader has room, until the load exceeds
/// [`FULL_ABOVE_PERCENT`]. Accounted work excludes timers, wake-ups and polling.
const ROOM_BELOW_PERCENT: u64 = 25;
const FULL_ABOVE_PERCENT: u64 = 40;
/// Sessions per second that all followers together may send. Their load shows in the measurement a second
/// later.
pub const MOVES_PER_SECOND: u32 = 100;
/// Connections above which a leader invites no client: when the leader dies, all its clients reconnect at
/// once.
const CONNECTIONS_MAX: i64 = 1_000;
/// Validity of the leader's latest allowance.
const ALLOWED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Invitations {
    load: Mutex<Load>,
    allowed: Mutex<Option<Allowed>>,
}

#[derive(Debug, Default)]
struct Load {
    /// Start of the running measurement, and the work before that.
    since: Option<(Instant, Duration)>,
    percent: u64,
    has_room: bool,
}

impl Load {
    /// Updates the load; `worked` is all work so far, per thread.
    fn measure(&mut self, worked: Duration, now: Instant) {
        let (since, before) = *self.since.get_or_insert((now, worked));
        let lasted = now.saturating_since(since);
        if lasted < MEASURED_OVER {
            return;
        }
        let part = worked.saturating_sub(before).as_micros() * 100 / lasted.as_micros();
        self.percent = u64::try_from(part).unwrap_or(u64::MAX);
        self.since = Some((now, worked));
        const { assert!(ROOM_BELOW_PERCENT < FULL_ABOVE_PERCENT, "moves must not come and go") };
        if self.percent < ROOM_BELOW_PERCENT {
            self.has_room = true;
        } else if self.percent > FULL_ABOVE_PERCENT {
            self.has_room = false;
        }
    }
}

/// Allowance by the leader to this node.
#[derive(Debug)]
struct Allowed {
    per_second: u32,
    at: Instant,
    left: Bucket,
}

impl Invitations {
    /// Measures the load of this node and returns the load in percent. Called several times a second.
    pub fn measure(&self, now: Instant) -> u64 {
        let threads = u32::try_from(task::threads()).unwrap_or(u32::MAX).max(1);
        let mut load = self.load.lock();
        load.measure(busy::total() / threads, now);
        load.percent
    }

    /// Returns how many sessions per second each of `followers` may send here. Called on the leader.
    pub fn per_second(&self, followers: usize, connections: i64) -> u32 {
        if decides!("leader-has-no-room", !self.load.lock().has_room || connections > CONNECTIONS_MAX) {
            return 0;
        }
        let followers = u32::try_from(followers).unwrap_or(u32::MAX);
        let each = MOVES_PER_SECOND.checked_div(followers).unwrap_or(0);
        assert!(each.saturating_mul(followers) <= MOVES_PER_SECOND, "followers share the moves");
        each
    }

    /// Records the leader's allowance. Called on a follower.
    pub fn allow(&self, per_second: u32, now: Instant) {
        let mut allowed = self.allowed.lock();
        match &mut *allowed {
            Some(allowed) if allowed.per_second == per_second => allowed.at = now,
            _ if per_second == 0 => *allowed = None,
            _ => *allowed = Some(Allowed { per_second, at: now, left: Bucket::new(per_second, per_second) }),
        }
    }

    /// Uses up an invitation. Returns false if none is left.
    pub fn take(&self, now: Instant, metrics: &Metrics) -> bool {
        let mut allowed = self.allowed.lock();
        let allowed = allowed.as_mut().filter(|allowed| now.saturating_since(allowed.at) < ALLOWED_FOR);
        let is_invited = allowed.is_some_and(|allowed| allowed.left.take(now));
        metrics.sessions_invited_total.add(u64::from(is_invited));
        is_invited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn room_ends_above_the_upper_bound_and_returns_below_the_lower() {
        let (begin, mut load) = (Instant::now(), Load::default());
        let (mut now, mut worked) = (begin, ms(70));
        load.measure(worked, now);
        assert!(!load.has_room, "nothing is measured yet");
        let mut after = |percent: u64| {
            for _ in 0..20 {
                now += ms(50);
                worked += ms(percent) / 2;
                load.measure(worked, now);
            }
            assert_eq!(load.percent, percent);
            load.has_room
        };
        let between = (ROOM_BELOW_PERCENT + FULL_ABOVE_PERCENT) / 2;
        assert!(!after(between) && after(ROOM_BELOW_PERCENT - 1));
        assert!(after(between) && after(FULL_ABOVE_PERCENT), "what has come stays welcome");
        assert!(!after(FULL_ABOVE_PERCENT + 1) && !after(between) && !after(ROOM_BELOW_PERCENT));
        assert!(after(0));
    }

    #[test]
    fn the_leader_divides_its_moves_among_the_followers() {
        let leader = Invitations::default();
        assert_eq!(leader.per_second(2, 0), 0, "it does not know its load yet");
        leader.load.lock().has_room = true;
        assert_eq!([1, 2, 4].map(|followers| leader.per_second(followers, 9)), [100, 50, 25]);
        assert_eq!(leader.per_second(2, CONNECTIONS_MAX + 1), 0);
        assert_eq!(leader.per_second(0, 0), 0);
    }

    #[test]
    fn a_follower_invites_at_the_leaders_latest_pace() {
        let (follower, metrics, begin) = (Invitations::default(), Metrics::default(), Instant::now());
        assert!(!follower.take(begin, &metrics));
        let invited =
            |from: u64, to: u64| (from..to).filter(|at| follower.take(begin + ms(*at), &metrics)).count();
        let mut all = 0;
        for tenth in 0..30 {
            follower.allow(50, begin + ms(100 * tenth));
            all += invited(100 * tenth, 100 * (tenth + 1));
        }
        assert!((50 + 145..=50 + 150).contains(&all), "a second's at once, then fifty a second: {all}");
        assert_eq!(metrics.sessions_invited_total.get(), all as u64);
        assert_eq!(invited(3_900, 8_000), 0, "the leader is silent");
        follower.allow(50, begin + ms(9_000));
        follower.allow(0, begin + ms(9_001));
        assert_eq!(invited(9_002, 9_100), 0, "it has no room");
    }
}
