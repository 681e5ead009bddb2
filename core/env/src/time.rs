//! Clocks and timers. Durations and deadlines are monotonic; the wall clock only labels data for people.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pin_project_lite::pin_project;

use crate::world::{self, TimerId, World};

/// A point on this process's monotonic clock, in nanoseconds since the first use of the clock. On Linux the
/// clock continues while the machine is suspended: other machines count this time, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

/// Error of a future unfinished at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("deadline has passed")
    }
}

impl std::error::Error for Elapsed {}

/// Reads the system's monotonic clock, including the time of a suspended machine. (`std::time::Instant`, and
/// tokio's timers with it, exclude this time.)
#[cfg(target_os = "linux")]
fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Reads a clock that excludes the time of a suspended machine, on systems without a better clock.
#[cfg(not(target_os = "linux"))]
fn clock() -> Duration {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    ORIGIN.get_or_init(std::time::Instant::now).elapsed()
}

/// Returns the start of this process's monotonic clock.
fn origin() -> Duration {
    static ORIGIN: OnceLock<Duration> = OnceLock::new();
    *ORIGIN.get_or_init(clock)
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

pub fn now() -> Instant {
    if let Some(world) = world::current() {
        return Instant(world.now_ns());
    }
    // Adds an hour, so that `now() - Duration` does not saturate right after the start.
    let origin = origin();
    Instant(nanos(clock().saturating_sub(origin)) + 3_600_000_000_000)
}

/// Returns the wall clock in milliseconds since 1970. The clock may jump: never compute a deadline from it.
pub fn wall_ms() -> i64 {
    if let Some(world) = world::current() {
        return world.wall_ms();
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Instant {
    pub fn now() -> Self {
        now()
    }

    /// Returns the time since `self`; zero for a future instant.
    pub fn elapsed(self) -> Duration {
        now().saturating_since(self)
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    fn to_tokio(self) -> tokio::time::Instant {
        self.to_std().into()
    }

    /// Converts to the standard library's clock, as of now: a later suspension delays the result. A past
    /// instant becomes now, and an instant a century or more ahead becomes never.
    pub fn to_std(self) -> std::time::Instant {
        let left = self.saturating_since(now());
        let now = tokio::time::Instant::now().into_std();
        now.checked_add(left).unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 86_400))
    }
}

/// Converts for foreign `sleep_until` functions: see [`Instant::to_std`].
impl From<Instant> for std::time::Instant {
    fn from(at: Instant) -> Self {
        at.to_std()
    }
}

/// Converts for [`tokio::time::timeout_at`]: see [`Instant::to_std`].
impl From<Instant> for tokio::time::Instant {
    fn from(at: Instant) -> Self {
        at.to_std().into()
    }
}

/// Converts a deadline of another clock: equally far ahead of this clock's present.
impl From<std::time::Instant> for Instant {
    fn from(at: std::time::Instant) -> Self {
        let std_now = tokio::time::Instant::now().into_std();
        now() + at.saturating_duration_since(std_now) - std_now.saturating_duration_since(at)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(d)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(d)))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, d: Duration) {
        *self = *self - d;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

pin_project! {
    /// Future of [`sleep`], ready at its deadline.
    pub struct Sleep { #[pin] inner: SleepIn }
}

pin_project! {
    #[project = SleepProjection]
    enum SleepIn {
        Reality { #[pin] sleep: tokio::time::Sleep },
        World { alarm: Alarm },
    }
}

struct Alarm {
    world: Arc<dyn World>,
    deadline: u64,
    set: Option<TimerId>,
}

impl Alarm {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.cancel();
        if self.world.now_ns() >= self.deadline {
            return Poll::Ready(());
        }
        self.set = Some(self.world.set_timer(self.deadline, cx.waker()));
        Poll::Pending
    }

    fn cancel(&mut self) {
        if let Some(timer) = self.set.take() {
            self.world.cancel_timer(timer);
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project().inner.project() {
            SleepProjection::Reality { sleep } => sleep.poll(cx),
            SleepProjection::World { alarm } => alarm.poll(cx),
        }
    }
}

pub fn sleep(d: Duration) -> Sleep {
    match world::current() {
        Some(world) => {
            let deadline = world.now_ns().saturating_add(nanos(d));
            Sleep { inner: SleepIn::World { alarm: Alarm { world, deadline, set: None } } }
        }
        None => Sleep { inner: SleepIn::Reality { sleep: tokio::time::sleep(d) } },
    }
}

/// Waits until `deadline`. Cancel safe.
pub fn sleep_until(deadline: Instant) -> Sleep {
    match world::current() {
        Some(world) => {
            Sleep { inner: SleepIn::World { alarm: Alarm { world, deadline: deadline.0, set: None } } }
        }
        None => Sleep { inner: SleepIn::Reality { sleep: tokio::time::sleep_until(deadline.to_tokio()) } },
    }
}

/// Interval of checks against the clock: timers stop while the machine is suspended, unlike the clock.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// Returns the time of the next clock check for a `deadline`, so that after a suspension the caller is late
/// by at most a second.
pub fn next_clock_check(deadline: Instant) -> Instant {
    // A simulated machine is never suspended, and its timers follow its clock.
    if world::is_simulated() { deadline } else { deadline.min(now() + CLOCK_CHECK) }
}

/// Waits until `deadline`, and is late by at most a second after a suspension. Cancel safe.
pub async fn alarm(deadline: Instant) {
    loop {
        sleep_until(next_clock_check(deadline)).await;
        if now() >= deadline {
            return;
        }
    }
}

/// Interval of the beats on the process's clock. Periodic work without a fixed time runs on the beats: an
/// idle process wakes once for all such work. A multiple of 64 ms, see [`align_beats`].
pub const BEAT: Duration = Duration::from_millis(128);

/// Offset of the beats from the process's clock, in nanoseconds.
static BEATS_FROM: OnceLock<u64> = OnceLock::new();

/// Aligns the beats with the timers of the tokio runtime that was built just now. A thread with a timer more
/// than 64 ms ahead also wakes at the last multiple of 64 ms before the timer, counted from the runtime's
/// start. A beat is such a multiple itself.
pub fn align_beats() {
    // tokio rounds deadlines up to whole milliseconds.
    let start = now() - Duration::from_micros(500);
    let _ = BEATS_FROM.set(start.0 % nanos(BEAT));
}

/// Returns the instant `d` from now, or up to a [`BEAT`] earlier, so that many sleeps end together.
pub fn about(d: Duration) -> Instant {
    about_after(now(), d)
}

/// Returns the next beat.
pub fn next_beat() -> Instant {
    about(BEAT)
}

/// Returns the instant `d` from `since`, or up to a [`BEAT`] earlier, so that many sleeps end together.
pub fn about_after(since: Instant, d: Duration) -> Instant {
    let from = if world::is_simulated() { 0 } else { BEATS_FROM.get().copied().unwrap_or_default() };
    let end = since + d;
    let beat = Instant(end.0 - (end.0 - from) % nanos(BEAT));
    if beat > since { beat } else { end }
}

/// Waits for `d`, or up to a [`BEAT`] less, so that many sleeps end together. Cancel safe.
pub fn sleep_about(d: Duration) -> Sleep {
    sleep_until(about(d))
}

pin_project! {
    pub struct Timeout<F> { #[pin] future: F, #[pin] sleep: Sleep }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        this.sleep.poll(cx).map(|()| Err(Elapsed))
    }
}

/// Runs `future` for at most `d`, then drops the future.
pub fn timeout<F: Future>(d: Duration, future: F) -> Timeout<F> {
    Timeout { future, sleep: sleep(d) }
}

/// Runs `future` until `deadline` at most, then drops the future.
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    Timeout { future, sleep: sleep_until(deadline) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_instants_are_durations_and_never_negative() {
        let a = now();
        let b = a + Duration::from_millis(5);
        assert_eq!(b - a, Duration::from_millis(5));
        assert_eq!(a - b, Duration::ZERO);
        assert_eq!(b - Duration::from_millis(5), a);
    }

    #[test]
    fn a_deadline_keeps_its_distance_on_other_clocks() {
        let ahead = now() + Duration::from_secs(60);
        let (std, tokio) = (std::time::Instant::from(ahead), tokio::time::Instant::from(ahead));
        for left in [std - std::time::Instant::now(), tokio - tokio::time::Instant::now()] {
            assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(50), "{left:?}");
        }
        let back = Instant::from(std);
        assert!(back.saturating_since(ahead).max(ahead.saturating_since(back)) < Duration::from_secs(10));
        let passed = std::time::Instant::from(now() - Duration::from_secs(60));
        assert!(passed <= std::time::Instant::now());
    }

    #[test]
    fn about_equal_sleeps_end_on_a_common_beat() {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let end = |since, ms| about_after(at(since), Duration::from_millis(ms));
        assert_eq!([130, 250, 377].map(|ms| end(1_030, ms)), [at(1_152), at(1_280), at(1_280)]);
        assert_eq!(end(1_152, 128), at(1_280), "from beat to beat");
        assert_eq!(end(1_030, 70), at(1_100), "no beat lies between");
    }

    #[tokio::test]
    async fn an_alarm_checks_the_clock_and_ends_at_its_deadline() {
        let (near, far) = (now() + Duration::from_millis(10), now() + Duration::from_secs(3_600));
        assert_eq!(next_clock_check(near), near);
        assert!(next_clock_check(far) <= now() + CLOCK_CHECK);
        alarm(near).await;
        assert!(now() >= near);
        assert_eq!(timeout(Duration::from_millis(5), alarm(far)).await, Err(Elapsed));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_counts_the_time_in_which_the_machine_was_suspended() {
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let clock = clock().as_secs();
        assert!(
            (clock..=clock + 1).contains(&since_boot.tv_sec.unsigned_abs())
                || clock == since_boot.tv_sec.unsigned_abs() + 1
        );
    }

    #[tokio::test]
    async fn sleep_until_is_never_early_and_a_far_deadline_is_safe() {
        let deadline = now() + Duration::from_millis(10);
        sleep_until(deadline).await;
        assert!(now() >= deadline);
        let never = timeout(Duration::from_millis(5), sleep_until(Instant(u64::MAX))).await;
        assert_eq!(never, Err(Elapsed));
    }
}
