//! The log's clock: what a leader stamps batches with, and measures by what time brings to locks and znodes
//! (lock-delays, maximum holds, TTLs).
//!
//! It shows the time of day and is not the wall clock, because that one is set. A step back would stop every
//! lock-delay and every maximum hold until the wall clock is where it was before (the state never lets the
//! log's time go back); a step ahead would take locks from their holders before their time. So the wall clock
//! is read once, when the node starts; from there the monotonic clock counts, and what this node applies
//! raises the reading to the stamps of other leaders. A new leader goes on where the old one was, to within
//! the delay of replication.
//!
//! What it cannot know: a wall clock that is wrong when its node starts, and ahead, takes the log's time with
//! it when that node leads; nothing takes the log's time back. One that is behind is raised by the log.
//! Setting a wall clock right takes effect with the next start of its node, and so does time in which the
//! whole machine was suspended (unless another leader has stamped meanwhile). A node whose monotonic clock
//! runs faster than the leader's is ahead by the difference when it leads next. The times in Stats (ctime,
//! mtime) are this clock's.
//!
//! Must never be asked for anything but stamps and what is compared with them: durations and deadlines of
//! this node alone are the monotonic clock's business.

use std::sync::atomic::{AtomicI64, Ordering};

use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};

/// One per node, shared by those who stamp, those who compare with stamps, and apply, which raises it.
///
/// Invariant: readings never go back.
#[derive(Debug)]
pub struct LogClock {
    started: Instant,
    /// What it showed then, milliseconds since 1970, and what it has been raised by since.
    began_ms: AtomicI64,
}

impl LogClock {
    /// Shows the wall clock's time. The only look at that one.
    pub fn starting_now() -> LogClock {
        LogClock { started: time::now(), began_ms: AtomicI64::new(time::wall_ms()) }
    }

    /// Milliseconds since 1970, by the log.
    pub fn now_ms(&self) -> i64 {
        if mutant::is(Mutant::StampByWallClock) {
            return time::wall_ms();
        }
        let elapsed_ms = self.elapsed_ms();
        self.began_ms.load(Ordering::Acquire).saturating_add(elapsed_ms)
    }

    /// The log says that it is so late, at least.
    pub fn observe(&self, time_ms: i64) {
        let began_ms = time_ms.saturating_sub(self.elapsed_ms());
        // Most entries change nothing: no write to what all readers share.
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

    /// A simulated host, with the log's clock of its node.
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

        /// The log's clock, since the start.
        fn reading(&self) -> i64 {
            self.sim.on(self.host, || self.clock.now_ms()) - self.began_ms
        }

        /// The log says that it is so late since the start.
        fn observe(&self, ms: i64) {
            self.sim.on(self.host, || self.clock.observe(self.began_ms.saturating_add(ms)));
        }
    }

    #[test]
    fn it_begins_with_the_wall_clock_and_follows_none_of_its_jumps() {
        let host = Host::new();
        for (jump_ms, reading) in [(-43_000, 1_000), (3_600_000, 2_000)] {
            host.sim.jump_wall_clock(host.host, jump_ms);
            host.pass(1_000);
            assert_eq!(host.reading(), reading);
        }
    }

    #[test]
    fn the_log_raises_it_and_never_takes_it_back() {
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
