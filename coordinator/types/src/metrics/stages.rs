//! The stages of a request's way through a node, and how long each takes.

use std::time::Duration;

use super::instrument::Histogram;

/// A part of a request's way. A node measures those that lie on it: what a follower waits for the leader is
/// its `Forward`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From decoding a request to the intake's taking it: the requests in front of it, and the intake.
    /// Sampled: the first request of each batch.
    Queue,
    /// From there to the entry in this node's log: the leader's batching, and on a follower the way to the
    /// leader and back. Once per entry with requests of this node.
    Forward,
    /// From there to the end of this node's flush, if a quorum waited for that. Once per entry.
    Flush,
    /// From there (or from the log, if no quorum waited for this node's flush) to the beginning of apply:
    /// the other nodes' flushes, and entries in front of it. Once per entry.
    Quorum,
    /// Applying the entry. Once per entry.
    Apply,
    /// From apply's answer to encoding the reply. Sampled: the first answer that a connection takes.
    Outbox,
}

impl Stage {
    pub const ALL: [(Stage, &'static str); 6] = [
        (Stage::Queue, "queue"),
        (Stage::Forward, "forward"),
        (Stage::Flush, "flush"),
        (Stage::Quorum, "quorum"),
        (Stage::Apply, "apply"),
        (Stage::Outbox, "outbox"),
    ];
}

/// Durations of the stages, shown as one histogram per stage.
#[derive(Debug, Default)]
pub struct StageHistograms([Histogram; Stage::ALL.len()]);

impl StageHistograms {
    pub fn record(&self, stage: Stage, duration: Duration) {
        self.0[stage as usize].record(duration);
    }

    /// Iterates over the histograms with their labels.
    pub fn get(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        Stage::ALL.iter().map(|(stage, label)| (*label, &self.0[*stage as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_for_its_own_stage_only() {
        let histograms = StageHistograms::default();
        for (nth, (stage, _)) in Stage::ALL.into_iter().enumerate() {
            (0..=nth).for_each(|_| histograms.record(stage, Duration::from_micros(20)));
        }
        let counts: Vec<(&str, u64)> =
            histograms.get().map(|(label, one)| (label, one.view().count)).collect();
        let wanted = [("queue", 1), ("forward", 2), ("flush", 3), ("quorum", 4), ("apply", 5), ("outbox", 6)];
        assert_eq!(counts, wanted);
    }
}
