//! Timeline of one write through this node, as time stamps for the log line of a slow request.
//!
//! Most time stamps belong to the log entry and are copied from the entry, so a write costs a few words of
//! memory and no clock read of its own.

use std::time::Duration;

use rowlock_consensus::entry_times::EntryStages;
use rowlock_env::time::Instant;

/// Time stamps from the intake to the outbox of the reply.
#[derive(Clone, Debug)]
pub struct WriteTimeline {
    /// Time at the intake.
    pub taken: Instant,
    /// Stages of the log entry, on this node.
    pub entry: EntryStages,
    /// Time of apply, with the precision of a few commands.
    pub answered: Instant,
    /// Path of the lock or znode; for several paths, the first.
    pub path: Option<String>,
}

/// Durations of a write's stages (`rowlock_metrics::Stage`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Wait for the intake.
    pub queue: Duration,
    /// Wait until the entry was in this node's log.
    pub forward: Duration,
    /// Flush of this node; `None`: the quorum did not need this flush.
    pub flush: Option<Duration>,
    /// Wait until the entry's apply began.
    pub quorum: Duration,
    /// Wait until the command was applied.
    pub apply: Duration,
    /// Wait until the reply was encoded.
    pub outbox: Duration,
}

impl WriteTimeline {
    /// Returns the stages of a write received at `received` and answered at `replied`. The sum is the time
    /// between both, up to clock differences between threads.
    pub fn stages(&self, received: Instant, replied: Instant) -> Stages {
        let EntryStages { appended, begun, .. } = self.entry;
        Stages {
            queue: self.taken.saturating_since(received),
            forward: appended.saturating_since(self.taken),
            flush: self.entry.flush(),
            quorum: self.entry.quorum(),
            apply: self.answered.saturating_since(begun),
            outbox: replied.saturating_since(self.answered),
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_consensus::entry_times::EntryTimes;
    use rowlock_env::time;

    use super::*;

    #[test]
    fn stages_of_a_write_add_up_to_its_duration() {
        let ms = Duration::from_millis;
        let (times, received) = (EntryTimes::default(), time::now() - ms(50));
        times.appended(7, 7);
        times.flushed(7);
        let begun = time::now() + ms(30);
        let entry = times.take(7, begun);
        let timeline = WriteTimeline { taken: received + ms(10), entry, answered: begun + ms(4), path: None };
        let replied = begun + ms(9);
        let Stages { queue, forward, flush, quorum, apply, outbox } = timeline.stages(received, replied);
        assert_eq!((queue, apply, outbox), (ms(10), ms(4), ms(5)));
        assert!(forward >= ms(40) && quorum >= ms(30) && flush.is_some());
        let all = queue + forward + flush.unwrap() + quorum + apply + outbox;
        assert_eq!(all, replied.saturating_since(received));
    }
}
