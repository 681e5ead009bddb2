//! The log's clock: stamps the leader's batches, and measures the times of locks and znodes (lock-delays,
//! maximum holds, TTLs).
//!
//! The clock shows the time of day but is not the wall clock, which administrators set. A step back would
//! stop every lock-delay and every maximum hold until the wall clock returns to the earlier value (the state
//! never lets the log's time go back); a step ahead would end holds too early. So the node reads the wall
//! clock once, at its start; from then on the monotonic clock counts, and applied batches raise the reading
//! to the stamps of other leaders. A new leader continues the old leader's time, to within the delay of
//! replication.
//!
//! Limits: a wall clock that is ahead at the start of its node moves the log's time ahead once the node
//! leads; nothing moves the log's time back. The log raises a clock that is behind. A corrected wall clock
//! takes effect at the next start of its node, and so does the time of a suspended machine (unless another
//! leader stamped a batch in the meantime). A node whose monotonic clock runs faster than the leader's is
//! ahead by the difference when the node leads next. The times in Stats (ctime, mtime) come from this clock.
//!
//! Use this clock only for stamps and for comparison with stamps: durations and deadlines of this node alone
//! use the monotonic clock.

use std::sync::atomic::{AtomicI64, Ordering};

use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};

/// Clock of the log. One per node, shared by the stamping task, all readers of stamps, and apply, which
/// raises the clock.
///
/// Invariant: readings never go back.
#[derive(Debug)]
pub struct LogClock {
    started: Instant,
    /// Reading at `started`, milliseconds since 1970, plus all later raises.
    began_ms: AtomicI64,
}

impl LogClock {
    /// Starts with the wall clock's time: the only read of the wall clock.
    pub fn starting_now() -> LogClock {
        LogClock { started: time::now(), began_ms: AtomicI64::new(time::wall_ms()) }
    }

    /// Returns the log's time, milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        if mutant::is(Mutant::StampByWallClock) {
            return time::wall_ms();
        }
        let elapsed_ms = self.elapsed_ms();
        self.began_ms.load(Ordering::Acquire).saturating_add(elapsed_ms)
    }

    /// Raises the clock to at least the stamp `time_ms`.
    pub fn observe(&self, time_ms: i64) {
        let began_ms = time_ms.saturating_sub(self.elapsed_ms());
        // Most entries change nothing: avoid a write to memory that all readers share.
        if began_ms > self.began_ms.load(Ordering::Acquire) {
            self.began_ms.fetch_max(began_ms, Ordering::AcqRel);
        }
        debug_assert!(self.began_ms.load(Ordering::Acquire) >= began_ms, "the log's time never goes back");
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use rowlock_world::executor::Simulation;
    use rowlock_world::time::HostId;

    use super::*;

    /// Simulated host, with the log's clock of its node.
    struct Host {
        sim: Simulation,
        host: HostId,
        began_ms: i64,
        clock: LogClock,
    }

    impl Host {
        fn new() -> Host {
            let sim = Simulation::new(1, false);
            let host = sim.add_host("node1", "node", Ipv4Addr::new(10, 0, 0, 1));
            sim.boot(host);
            let (began_ms, clock) = sim.on(host, || (time::wall_ms(), LogClock::starting_now()));
            Host { sim, host, began_ms, clock }
        }

        fn pass(&self, ms: u64) {
            assert!(self.sim.run_until(self.sim.now() + Duration::from_millis(ms)).is_ok());
        }

        /// Returns the reading relative to the start.
        fn reading(&self) -> i64 {
            self.sim.on(self.host, || self.clock.now_ms()) - self.began_ms
        }

        /// Observes a stamp of `ms` after the start.
        fn observe(&self, ms: i64) {
            self.sim.on(self.host, || self.clock.observe(self.began_ms.saturating_add(ms)));
        }
    }

    #[test]
    fn the_clock_starts_at_wall_time_and_ignores_its_jumps() {
        let host = Host::new();
        for (jump_ms, reading) in [(-43_000, 1_000), (3_600_000, 2_000)] {
            host.sim.jump_wall_clock(host.host, jump_ms);
            host.pass(1_000);
            assert_eq!(host.reading(), reading);
        }
    }

    #[test]
    fn stamps_raise_the_clock_and_never_lower_it() {
        let host = Host::new();
        host.pass(100);
        host.observe(60_000);
        assert_eq!(host.reading(), 60_000);
        host.pass(500);
        for old_ms in [i64::MIN, 0, 60_499] {
            host.observe(old_ms);
            assert_eq!(host.reading(), 60_500);
        }
    }

    #[test]
    fn a_stamp_from_the_end_of_time_overflows_nothing() {
        let host = Host::new();
        host.observe(i64::MAX);
        host.pass(10);
        assert_eq!(host.reading(), i64::MAX - host.began_ms);
    }
}
