//! Pauses of the streams of lock events. The pauses limit all streams together to a fifth of the processor
//! time of the node's thread.
//!
//! Each batch counts as a fixed amount of work ([`rowlock_env::busy`]). From time to time the thread's
//! counted work is compared with the thread's running time and its wait for a processor; the ratio of time to
//! work, the stretch, multiplies the pause.

use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::busy;
use rowlock_env::process::{ThreadTimes, thread_times};
use rowlock_env::time::{self, Instant};

use crate::limits::API_WATCH_SHARE;

/// Shortest time between two reads of the thread's times.
const READ_EVERY: Duration = Duration::from_millis(200);
/// Least counted work for a new stretch. With less work, the previous stretch remains.
const WORK_MIN: Duration = Duration::from_millis(1);
/// Upper bound of the stretch.
const STRETCH_MAX: f64 = 40.0;
/// Upper bound of a pause. A stream too slow for this pause gets a gap.
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Pace {
    measured: Mutex<Option<Measured>>,
}

struct Measured {
    at: Instant,
    thread: ThreadId,
    times: ThreadTimes,
    worked: Duration,
    /// Ratio of the measured time to the counted work.
    stretch: f64,
}

impl Pace {
    /// Returns the pause of one of `streams` streams after a batch of this counted work.
    pub(super) fn pause(&self, work: Duration, streams: usize) -> Duration {
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        (work * (API_WATCH_SHARE - 1)).saturating_mul(streams).mul_f64(self.stretch()).min(PAUSE_MAX)
    }

    fn stretch(&self) -> f64 {
        let (mut measured, now) = (self.measured.lock(), time::now());
        if let Some(known) = measured.as_ref().filter(|known| now < known.at + READ_EVERY) {
            return known.stretch;
        }
        let Some(times) = thread_times() else { return 1.0 };
        let (thread, worked) = (thread::current().id(), busy::done());
        let stretch = match measured.as_ref() {
            Some(before) if before.thread == thread => {
                let work = worked.saturating_sub(before.worked);
                let took = times.total().saturating_sub(before.times.total());
                stretch(work, took).unwrap_or(before.stretch)
            }
            Some(of_other) => of_other.stretch,
            None => 1.0,
        };
        *measured = Some(Measured { at: now, thread, times, worked, stretch });
        stretch
    }
}

/// Returns the ratio of time to work. `None`: too little work for a ratio.
fn stretch(work: Duration, took: Duration) -> Option<f64> {
    (work >= WORK_MIN).then(|| (took.as_secs_f64() / work.as_secs_f64()).clamp(1.0, STRETCH_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_with_streams_and_measured_time_of_work() {
        let ms = Duration::from_millis;
        assert_eq!(stretch(ms(0), ms(9)), None);
        assert_eq!(stretch(ms(50), ms(40)), Some(1.0));
        assert_eq!(stretch(ms(50), ms(200)), Some(4.0));
        assert_eq!(stretch(ms(1), ms(10_000)), Some(STRETCH_MAX));
        let pace = Pace::default();
        let pause = |streams| pace.pause(Duration::from_micros(10), streams);
        assert!(pause(10) >= Duration::from_micros(400));
        let (at, thread, worked) = (time::now() + ms(60_000), thread::current().id(), ms(1));
        let times = ThreadTimes { ran: ms(1), waited: ms(3) };
        *pace.measured.lock() = Some(Measured { at, thread, times, worked, stretch: 4.0 });
        assert_eq!(pause(10), Duration::from_micros(1_600));
        assert_eq!(pause(1_000_000), PAUSE_MAX);
    }
}
