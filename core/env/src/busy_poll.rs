//! Polling of sockets instead of sleeping while a reply is expected soon.
//!
//! A sleeping processor needs tens of microseconds to wake up, longer on a virtual machine, and a commit
//! waits for several wake-ups. So a node polls its sockets while polling pays off, and yields the processor
//! after each poll. As in KVM's halt polling (Documentation/virt/kvm/halt-polling.rst), polling pays off
//! while waits are short: the time of unsuccessful polling never exceeds the waits covered by polling, real
//! or hypothetical.

#![allow(clippy::disallowed_methods)] // a simulated world has no sleep to avoid

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::world;

/// Duration of a runtime turn without tasks, at most.
const IDLE: Duration = Duration::from_micros(20);

/// Bound of the savings, in unsuccessful waits: polling ends soon after work becomes rare again.
const FAILED_WAITS_MAX: u32 = 4;

/// Decides on polling. Clones share the state.
#[derive(Clone)]
pub struct BusyPoll {
    window: Duration,
    state: Arc<Mutex<PollState>>,
}

/// Times of recent work, and the decision to poll.
#[derive(Default)]
struct PollState {
    /// Arrival of the last work.
    last: Option<Instant>,
    /// Recent benefit of polling, real or hypothetical: the sum of the waits for work within the window,
    /// minus a window for each unsuccessful wait.
    saved: Duration,
    /// End of polling. `None`: the runtime may sleep.
    until: Option<Instant>,
}

impl PollState {
    /// Records the arrival of work. Returns true if polling pays off and has not started yet.
    fn work_has_come(&mut self, now: Instant, window: Duration) -> bool {
        if let Some(last) = self.last.replace(now) {
            let waited = now - last;
            self.saved = match waited <= window {
                true => (self.saved + waited).min(window * FAILED_WAITS_MAX),
                false => self.saved.saturating_sub(window),
            };
        }
        // The savings pay for an unsuccessful wait.
        self.saved >= window && self.until.replace(now + window).is_none()
    }

    fn is_awake(&mut self, now: Instant) -> bool {
        self.until = self.until.filter(|until| now < *until);
        self.until.is_some()
    }
}

impl BusyPoll {
    /// Polls for at most `window` after the last work. Zero disables polling.
    pub fn new(window: Duration) -> BusyPoll {
        BusyPoll { window, state: Arc::default() }
    }

    /// Records the arrival of work, with more work likely. Call within a runtime.
    pub fn work_has_come(&self) {
        if self.window.is_zero() || world::current().is_some() {
            return;
        }
        if self.state.lock().work_has_come(Instant::now(), self.window) {
            tokio::spawn(self.clone().stay_awake()); // ends by itself, within the window
        }
    }

    /// Keeps a task ready: the runtime then checks its sockets without waiting, in every turn.
    async fn stay_awake(self) {
        let mut others_took = Duration::ZERO;
        while self.is_awake() {
            // A thread with other work does not wait, and keeps the processor.
            if others_took < IDLE {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            tokio::task::yield_now().await;
            others_took = begun.elapsed();
        }
    }

    fn is_awake(&self) -> bool {
        self.state.lock().is_awake(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_micros(1_500);
    const HOUR: Duration = Duration::from_secs(3_600);

    /// Returns for each piece of work, after `gaps` in microseconds, true if the runtime stayed awake.
    fn awake_behind(state: &mut PollState, begin: Instant, gaps: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let mut now = begin;
        let awake = |gap| {
            now += Duration::from_micros(gap);
            state.work_has_come(now, WINDOW);
            state.is_awake(now)
        };
        gaps.into_iter().map(awake).collect()
    }

    #[test]
    fn dense_work_keeps_the_runtime_awake_and_sparse_work_does_not() {
        let (mut state, begin) = (PollState::default(), Instant::now());
        let dense = awake_behind(&mut state, begin, [300; 20]);
        assert!(!dense[0] && !dense[1], "nothing says that more comes soon");
        assert!(dense[10..].iter().all(|awake| *awake), "{dense:?}");
        let sparse = awake_behind(&mut state, begin + HOUR, [10_000; 20]);
        assert!(sparse.iter().filter(|awake| **awake).count() <= FAILED_WAITS_MAX as usize, "{sparse:?}");
        assert!(!sparse[10..].contains(&true), "{sparse:?}");
    }

    #[test]
    fn rare_pairs_of_work_never_keep_the_runtime_awake() {
        let pairs = [4_000, 600].repeat(100);
        let awake = awake_behind(&mut PollState::default(), Instant::now(), pairs);
        assert!(!awake.contains(&true), "{awake:?}");
    }

    #[test]
    fn occasional_late_work_does_not_end_the_polling() {
        let with_late_ones = [300, 300, 300, 300, 300, 300, 2_000].repeat(50);
        let awake = awake_behind(&mut PollState::default(), Instant::now(), with_late_ones);
        assert!(!awake[100..].contains(&false), "{awake:?}");
    }

    #[test]
    fn polling_ends_after_the_window() {
        let (mut state, begin) = (PollState::default(), Instant::now());
        awake_behind(&mut state, begin, [300; 20]);
        let last = begin + Duration::from_micros(300 * 20);
        assert!(state.is_awake(last + WINDOW / 2));
        assert!(!state.is_awake(last + WINDOW));
    }

    fn awake(window: Duration) -> BusyPoll {
        let poll = BusyPoll::new(window);
        poll.state.lock().saved = HOUR;
        poll.work_has_come();
        poll
    }

    #[tokio::test]
    async fn other_tasks_run_during_polling() {
        let poll = awake(HOUR);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(tokio::spawn(async { 42 }).await.expect("it runs"), 42);
        assert!(poll.is_awake());
    }

    #[tokio::test]
    async fn a_window_of_zero_disables_polling() {
        assert!(!awake(Duration::ZERO).is_awake());
    }
}
