//! Bound on the writes of this node that are in flight to the log. Pure.
//!
//! Writes in flight form one line, at this node, at the leader and in the log: a new write waits for all of
//! them. So a node keeps no more in flight than the cluster answers within [`AIM`], or within twice the round
//! trip without load: far members, or slow disks, need more for the same throughput. All other writes wait in
//! the fair queue, where each connection gets its turn; but small writes proceed although large ones fill the
//! window.

use std::time::Duration;

use rowlock_consensus::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};
use rowlock_env::decides;
use rowlock_env::time::Instant;

use crate::limits::WRITES_UNDER_WAY_MAX;

/// Target time to an answer, including the writes in flight before it.
const AIM: Duration = Duration::from_millis(10);
/// Minimum time between two changes of the window.
const ADJUST_EVERY: Duration = Duration::from_millis(10);
const LEAST: usize = BATCH_MAX_COMMANDS / 4;
/// Bytes that are always allowed, as long as commands are.
const SMALL_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Window {
    commands: usize,
    /// Shortest time to an answer under this leader.
    shortest: Option<Duration>,
    adjust_at: Option<Instant>,
}

/// Admissible writes: their number, and their bytes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) commands: usize,
    pub(super) bytes: usize,
    /// Admits a single larger write, too.
    pub(super) takes_larger: bool,
}

impl Default for Window {
    fn default() -> Self {
        Window { commands: BATCH_MAX_COMMANDS, shortest: None, adjust_at: None }
    }
}

impl Window {
    /// Returns the room beside the commands in flight.
    pub(super) fn room(&self, commands: usize, bytes: usize) -> Option<Room> {
        let commands = self.commands.saturating_sub(commands);
        let left = (self.commands * (BATCH_MAX_BYTES / BATCH_MAX_COMMANDS)).saturating_sub(bytes);
        (commands > 0).then_some(Room { commands, bytes: left.max(SMALL_BYTES), takes_larger: left > 0 })
    }

    /// Adapts the window to the time of an answer. `is_short`: other writes wait for room.
    pub(super) fn answered(&mut self, took: Duration, is_short: bool, now: Instant) {
        let shortest = self.shortest.map_or(took, |shortest| shortest.min(took));
        self.shortest = Some(shortest);
        if decides!("window-was-adjusted", self.adjust_at.is_some_and(|at| now < at)) {
            return;
        }
        self.adjust_at = Some(now + ADJUST_EVERY);
        if decides!("window-is-slow", took > AIM.max(2 * shortest)) {
            self.commands = (self.commands - self.commands / 8).max(LEAST);
        } else if is_short {
            self.commands = (self.commands + self.commands / 8).min(WRITES_UNDER_WAY_MAX);
        }
        assert!((LEAST..=WRITES_UNDER_WAY_MAX).contains(&self.commands), "a window within its bounds");
    }

    /// Resets the window: another leader may be nearer or farther.
    pub(super) fn leader_changed(&mut self) {
        *self = Window::default();
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;

    use super::*;

    /// Returns the window after a minute of answers that take `base` plus a time per write in flight.
    fn settled(base: Duration, per_second: u32) -> usize {
        let (mut window, mut now) = (Window::default(), time::now());
        window.answered(base, false, now);
        for _ in 0..6_000 {
            now += ADJUST_EVERY;
            let commands = u32::try_from(window.commands).expect("a window in memory");
            window.answered(base.max(Duration::from_secs(1) * commands / per_second), true, now);
        }
        window.commands
    }

    #[test]
    fn writes_in_flight_fit_the_aim_and_far_members_get_more() {
        let near = settled(Duration::from_millis(2), 30_000);
        assert!((200..=350).contains(&near), "{near} commands at 30,000 a second");
        assert_eq!(settled(Duration::from_millis(2), 5_000), LEAST, "a slow node");
        assert_eq!(settled(Duration::from_millis(100), 100_000), WRITES_UNDER_WAY_MAX, "far members");
    }

    #[test]
    fn a_new_leader_resets_the_window() {
        let (mut window, now) = (Window::default(), time::now());
        window.answered(Duration::from_millis(1), false, now);
        window.answered(Duration::from_secs(1), false, now + ADJUST_EVERY);
        assert!(window.commands < BATCH_MAX_COMMANDS);
        window.leader_changed();
        assert_eq!((window.commands, window.shortest), (BATCH_MAX_COMMANDS, None));
    }

    #[test]
    fn a_window_without_need_does_not_grow_and_bytes_count_too() {
        let (mut window, now) = (Window::default(), time::now());
        for lap in 0..100 {
            window.answered(Duration::from_millis(1), false, now + ADJUST_EVERY * lap);
        }
        assert_eq!(window.commands, BATCH_MAX_COMMANDS);
        let (all, most) = (BATCH_MAX_COMMANDS, BATCH_MAX_BYTES);
        let room = |commands, bytes, takes_larger| Some(Room { commands, bytes, takes_larger });
        assert_eq!(window.room(0, 0), room(all, most, true));
        assert_eq!(window.room(all - 1, most - 1), room(1, SMALL_BYTES, true));
        assert_eq!(window.room(1, most), room(all - 1, SMALL_BYTES, false), "small ones still go");
        assert_eq!(window.room(all, 1), None);
    }
}
