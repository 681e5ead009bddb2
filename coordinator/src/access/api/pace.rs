//! The pause of streams of lock events, by which all of them together take a fifth of what the node's thread
//! gets of its processor.
//!
//! A piece is accounted for with a fixed amount of work ([`rowlock_env::busy`]). How long that takes here is
//! measured: from time to time the thread's accounted work is compared with the time that it ran, and waited
//! because other programs had the processor. The pause is as many times as long.

use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::busy;
use rowlock_env::process::{ThreadTimes, thread_times};
use rowlock_env::time::{self, Instant};
use rowlock_types::limits::API_WATCH_SHARE;

/// The system is asked for the thread's times no more often.
const READ_EVERY: Duration = Duration::from_millis(200);
/// Accounted work that says something of the thread's speed. Beyond: the last one counts.
const WORK_MIN: Duration = Duration::from_millis(1);
/// Of a thread that seems slower, this counts.
const STRETCH_MAX: f64 = 40.0;
/// A pause grows no further. A stream that cannot follow then has a gap.
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
    /// How many times as long as is accounted for everything takes.
    stretch: f64,
}

impl Pace {
    /// Returns the pause of one stream behind a piece of so much accounted work while there are `streams`.
    pub(super) fn pause(&self, work: Duration, streams: usize) -> Duration {
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        (work * API_WATCH_SHARE).saturating_mul(streams).mul_f64(self.stretch()).min(PAUSE_MAX)
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

/// How many times as long as is accounted for the work took. `None`: it was too little to tell.
fn stretch(work: Duration, took: Duration) -> Option<f64> {
    (work >= WORK_MIN).then(|| (took.as_secs_f64() / work.as_secs_f64()).clamp(1.0, STRETCH_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_with_the_streams_and_with_the_time_that_work_takes() {
        let ms = Duration::from_millis;
        assert_eq!(stretch(ms(0), ms(9)), None);
        assert_eq!(stretch(ms(50), ms(40)), Some(1.0));
        assert_eq!(stretch(ms(50), ms(200)), Some(4.0));
        assert_eq!(stretch(ms(1), ms(10_000)), Some(STRETCH_MAX));
        let pace = Pace::default();
        let pause = |streams| pace.pause(Duration::from_micros(10), streams);
        assert!(pause(10) >= Duration::from_micros(500));
        let (at, thread, worked) = (time::now() + ms(60_000), thread::current().id(), ms(1));
        let times = ThreadTimes { ran: ms(1), waited: ms(3) };
        *pace.measured.lock() = Some(Measured { at, thread, times, worked, stretch: 4.0 });
        assert_eq!(pause(10), Duration::from_micros(2_000));
        assert_eq!(pause(1_000_000), PAUSE_MAX);
    }
}
