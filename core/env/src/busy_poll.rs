//! Polling sockets instead of sleeping while an answer is expected soon.
//!
//! A sleeping processor takes tens of microseconds to wake up, more on a virtual machine, and a commit waits
//! for several wake-ups. So a node polls its sockets while that pays, and yields the processor after each
//! look. As in KVM's halt polling (Documentation/virt/kvm/halt-polling.rst), polling pays while waits are
//! short: the time polled without success never exceeds the waits that polling has, or would have, covered.

#![allow(clippy::disallowed_methods)] // a simulated world has no sleep to avoid

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::world;

/// A turn of the runtime that takes less only checked the sockets.
const IDLE: Duration = Duration::from_micros(20);

/// Earlier waits pay for at most this many unsuccessful waits: then polling ends when work becomes rare
/// again.
const IN_VAIN_MAX: u32 = 4;

/// Clones watch the same work.
#[derive(Clone)]
pub struct BusyPoll {
    window: Duration,
    moments: Arc<Mutex<Moments>>,
}

/// The times of recent work, and whether to poll.
#[derive(Default)]
struct Moments {
    /// When work last came.
    last: Option<Instant>,
    /// The recent value of polling, done or not: the sum of the waits for work that came within the window,
    /// minus one window for each unsuccessful wait.
    saved: Duration,
    /// Awake until then. None: the runtime may sleep.
    until: Option<Instant>,
}

impl Moments {
    /// Whether it sleeps and must be woken.
    fn work_has_come(&mut self, now: Instant, window: Duration) -> bool {
        if let Some(last) = self.last.replace(now) {
            let waited = now - last;
            self.saved = match waited <= window {
                true => (self.saved + waited).min(window * IN_VAIN_MAX),
                false => self.saved.saturating_sub(window),
            };
        }
        // If it is unsuccessful, what was saved pays for it.
        self.saved >= window && self.until.replace(now + window).is_none()
    }

    fn is_awake(&mut self, now: Instant) -> bool {
        self.until = self.until.filter(|until| now < *until);
        self.until.is_some()
    }
}

impl BusyPoll {
    /// Polls for at most `window` after the last work. Zero: never.
    pub fn new(window: Duration) -> BusyPoll {
        BusyPoll { window, moments: Arc::default() }
    }

    /// Work has come, and more of it may. Call it within a runtime.
    pub fn work_has_come(&self) {
        if self.window.is_zero() || world::current().is_some() {
            return;
        }
        if self.moments.lock().work_has_come(Instant::now(), self.window) {
            tokio::spawn(self.clone().stay_awake()); // ends by itself, within the window
        }
    }

    /// A runtime with a ready task checks its sockets without waiting, in every turn.
    async fn stay_awake(self) {
        let mut others_took = Duration::ZERO;
        while self.is_awake() {
            // A thread with work of its own does not wait, and keeps the processor.
            if others_took < IDLE {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            tokio::task::yield_now().await;
            others_took = begun.elapsed();
        }
    }

    fn is_awake(&self) -> bool {
        self.moments.lock().is_awake(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_micros(1_500);
    const HOUR: Duration = Duration::from_secs(3_600);

    /// Whether it was awake after each piece of work, when one came after each of `gaps`, µs.
    fn awake_behind(moments: &mut Moments, begin: Instant, gaps: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let mut now = begin;
        let awake = |gap| {
            now += Duration::from_micros(gap);
            moments.work_has_come(now, WINDOW);
            moments.is_awake(now)
        };
        gaps.into_iter().map(awake).collect()
    }

    #[test]
    fn it_stays_awake_behind_work_that_comes_densely_until_it_comes_seldom_again() {
        let (mut moments, begin) = (Moments::default(), Instant::now());
        let dense = awake_behind(&mut moments, begin, [300; 20]);
        assert!(!dense[0] && !dense[1], "nothing says that more comes soon");
        assert!(dense[10..].iter().all(|awake| *awake), "{dense:?}");
        let sparse = awake_behind(&mut moments, begin + HOUR, [10_000; 20]);
        assert!(sparse.iter().filter(|awake| **awake).count() <= IN_VAIN_MAX as usize, "{sparse:?}");
        assert!(!sparse[10..].contains(&true), "{sparse:?}");
    }

    #[test]
    fn pairs_that_come_seldom_never_keep_it_awake() {
        let pairs = [4_000, 600].repeat(100);
        let awake = awake_behind(&mut Moments::default(), Instant::now(), pairs);
        assert!(!awake.contains(&true), "{awake:?}");
    }

    #[test]
    fn a_late_one_now_and_then_does_not_let_it_sleep() {
        let with_late_ones = [300, 300, 300, 300, 300, 300, 2_000].repeat(50);
        let awake = awake_behind(&mut Moments::default(), Instant::now(), with_late_ones);
        assert!(!awake[100..].contains(&false), "{awake:?}");
    }

    #[test]
    fn it_sleeps_when_the_window_has_passed() {
        let (mut moments, begin) = (Moments::default(), Instant::now());
        awake_behind(&mut moments, begin, [300; 20]);
        let last = begin + Duration::from_micros(300 * 20);
        assert!(moments.is_awake(last + WINDOW / 2));
        assert!(!moments.is_awake(last + WINDOW));
    }

    fn awake(window: Duration) -> BusyPoll {
        let poll = BusyPoll::new(window);
        poll.moments.lock().saved = HOUR;
        poll.work_has_come();
        poll
    }

    #[tokio::test]
    async fn others_run_while_it_is_awake() {
        let poll = awake(HOUR);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(tokio::spawn(async { 42 }).await.expect("it runs"), 42);
        assert!(poll.is_awake());
    }

    #[tokio::test]
    async fn a_window_of_nothing_never_keeps_it_awake() {
        assert!(!awake(Duration::ZERO).is_awake());
    }
}
