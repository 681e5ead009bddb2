//! The way of one write through this node, as time stamps: what a line about a slow request is made of.
//!
//! Most of it belongs to the log entry and is copied from there, so a write costs a few words of memory and
//! no look at a clock of its own.

use std::time::Duration;

use rowlock_consensus::entry_times::EntryStages;
use rowlock_env::time::Instant;

/// From the intake to the answer's outbox.
#[derive(Clone, Debug)]
pub struct Way {
    /// When the intake took it.
    pub taken: Instant,
    /// Stages of its log entry, on this node.
    pub entry: EntryStages,
    /// When it was applied, within a few commands.
    pub answered: Instant,
    /// The lock's or the znode's path; of a command that has several, the first.
    pub path: Option<String>,
}

/// How long each stage of a write took (`rowlock_types::metrics::Stage`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Until the intake took it.
    pub queue: Duration,
    /// Until its entry was in this node's log.
    pub forward: Duration,
    /// This node's flush; `None`: no quorum waited for it.
    pub flush: Option<Duration>,
    /// Until its entry's apply began.
    pub quorum: Duration,
    /// Until it was applied.
    pub apply: Duration,
    /// Until its reply was encoded.
    pub outbox: Duration,
}

impl Way {
    /// The stages of a write that was asked for at `received` and answered at `replied`. They add up to the
    /// time between these two, as far as the clocks of threads agree.
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
    fn the_stages_of_a_write_add_up_to_the_time_that_it_took() {
        let ms = Duration::from_millis;
        let (times, received) = (EntryTimes::default(), time::now() - ms(50));
        times.appended(7, 7);
        times.flushed(7);
        let begun = time::now() + ms(30);
        let entry = times.take(7, begun);
        let way = Way { taken: received + ms(10), entry, answered: begun + ms(4), path: None };
        let replied = begun + ms(9);
        let Stages { queue, forward, flush, quorum, apply, outbox } = way.stages(received, replied);
        assert_eq!((queue, apply, outbox), (ms(10), ms(4), ms(5)));
        assert!(forward >= ms(40) && quorum >= ms(30) && flush.is_some());
        let all = queue + forward + flush.unwrap() + quorum + apply + outbox;
        assert_eq!(all, replied.saturating_since(received));
    }
}
