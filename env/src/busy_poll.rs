//! Staying awake for what will come soon.
//!
//! A processor that sleeps takes tens of microseconds to wake up, on a virtual machine more, and a commit waits for several
//! that do. While commits follow each other closely, a node therefore polls its sockets instead of sleeping, and gives
//! the processor to whoever wants it after each look. The rule is that of KVM's halt polling
//! (Documentation/virt/kvm/halt-polling.rst): poll where the last wait was short enough to have been worth it. A node
//! with fewer commits than one per window never polls.

#![allow(clippy::disallowed_methods)] // a simulated world has no sleep to avoid

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{time, world};

/// A turn of the runtime that takes less was a look at the sockets and little else.
const IDLE: Duration = Duration::from_micros(20);

/// Clones watch the same work.
#[derive(Clone)]
pub struct BusyPoll {
    window: Duration,
    moments: Arc<Mutex<Moments>>,
}

#[derive(Default)]
struct Moments {
    /// When work last came.
    last: Option<Instant>,
    /// Awake until then. None: it sleeps as it likes.
    until: Option<Instant>,
}

impl BusyPoll {
    /// Polls for as long as `window` behind work that came that soon behind other work. Zero: never.
    pub fn new(window: Duration) -> BusyPoll {
        BusyPoll { window, moments: Arc::default() }
    }

    /// Work has come, and more of it may. Call it within a runtime.
    pub fn work_has_come(&self) {
        if self.window.is_zero() || world::current().is_some() {
            return;
        }
        let now = Instant::now();
        let is_asleep = {
            let mut moments = self.moments.lock();
            let last = moments.last.replace(now);
            if last.is_none_or(|last| now - last > self.window) {
                return;
            }
            moments.until.replace(now + self.window).is_none()
        };
        if is_asleep {
            tokio::spawn(self.clone().stay_awake()); // ends by itself, within the window
        }
    }

    /// A runtime with a task that is ready looks at its sockets without waiting, every time around.
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
        let mut moments = self.moments.lock();
        moments.until = moments.until.filter(|until| Instant::now() < *until);
        moments.until.is_some()
    }
}

/// Lets everybody run who can, after a look at the sockets; a simulated world, whose tasks take no time, goes on at `until`.
/// For waits that are shorter than a timer's tick (a millisecond): call it until then. Cancel safe.
pub async fn turn(until: time::Instant) {
    if world::current().is_some() {
        time::sleep_until(until).await;
    } else {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn only_work_that_follows_other_work_within_the_window_keeps_it_awake() {
        let poll = BusyPoll::new(LONG);
        poll.work_has_come();
        assert!(!poll.is_awake(), "nothing says that more comes soon");
        poll.work_has_come();
        assert!(poll.is_awake());
    }

    #[tokio::test]
    async fn it_sleeps_again_when_the_window_has_passed() {
        let poll = BusyPoll::new(Duration::from_micros(500));
        // On a slow machine the second may come too late: then there is nothing to wait for.
        poll.work_has_come();
        poll.work_has_come();
        while poll.is_awake() {
            tokio::task::yield_now().await;
        }
        assert!(poll.moments.lock().until.is_none());
    }

    #[tokio::test]
    async fn others_run_while_it_is_awake() {
        let poll = BusyPoll::new(LONG);
        poll.work_has_come();
        poll.work_has_come();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(tokio::spawn(async { 42 }).await.expect("it runs"), 42);
        assert!(poll.is_awake());
    }

    #[tokio::test]
    async fn a_window_of_nothing_never_keeps_it_awake() {
        let poll = BusyPoll::new(Duration::ZERO);
        poll.work_has_come();
        poll.work_has_come();
        assert!(!poll.is_awake());
    }
}
