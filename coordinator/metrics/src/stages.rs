//! Stages of a request in a node, with a duration histogram for each.

use std::time::Duration;

use super::instrument::Histogram;

/// One stage of a request. A node measures its own stages: a follower's wait for the leader is the follower's
/// `Forward`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Time from decoding a request until the intake takes the request: earlier requests, and the intake.
    /// Sampled: the first request of each batch.
    Queue,
    /// Time from the intake to the entry in this node's log: the leader's batching, and on a follower the
    /// round trip to the leader. Once per entry with requests of this node.
    Forward,
    /// Time from the entry in the log to the end of this node's flush, if a quorum waited for the flush. Once
    /// per entry.
    Flush,
    /// Time from the flush (or from the log, if no quorum waited for this node's flush) to the start of
    /// apply: flushes of other nodes, and earlier entries. Once per entry.
    Quorum,
    /// Application of the entry. Once per entry.
    Apply,
    /// Time from the result of apply to encoding the reply. Sampled: the first reply that a connection takes.
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

/// Durations of the stages, exported as one histogram per stage.
#[derive(Debug, Default)]
pub struct StageHistograms([Histogram; Stage::ALL.len()]);

impl StageHistograms {
    pub fn record(&self, stage: Stage, duration: Duration) {
        self.0[stage as usize].record(duration);
    }

    /// Returns the histograms with their labels.
    pub fn get(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        Stage::ALL.iter().map(|(stage, label)| (*label, &self.0[*stage as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_recorded_for_its_stage_only() {
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
