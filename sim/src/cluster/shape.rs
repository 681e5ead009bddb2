//! Number of nodes of a run, their log settings, and the choices that the seed enables in the code.

use rowlock_coordinator::config::LocksConfig;
use rowlock_env::choice::Choice;
use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

use super::node::MAX_TIMEOUT_MS;
use super::scenario::Scenario;

/// Changes of members that the leader makes without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autopilot {
    /// Milliseconds for which a learner must have kept up before it votes.
    pub promote_after_ms: u64,
    /// Milliseconds for which a voter must have been silent before its removal, if there are removals.
    pub remove_dead_after_ms: Option<u64>,
    /// Minimum number of voters after a removal.
    pub min_voters: usize,
}

/// Settings common to all nodes of a run.
#[derive(Clone, Debug)]
pub struct Shape {
    pub voters: usize,
    /// Nodes beyond the voters, which only replicate.
    pub learners: usize,
    /// Log entries between two snapshots.
    pub snapshot_every: u64,
    /// Entries before a snapshot that stay in the log.
    pub keep_logs: u64,
    /// Size of a log segment in bytes.
    pub segment_bytes: u64,
    /// Whether the leader removes and readmits a node that lost its data.
    pub readmits: bool,
    /// Size of each node's lock history in bytes, if nodes keep a history.
    pub history_bytes: Option<u64>,
    /// Whether nodes demand tokens of HTTP clients.
    pub asks_tokens: bool,
    /// Milliseconds between the leader's removals of empty containers and expired TTL znodes.
    pub sweep_interval_ms: u64,
    /// Time between the leader's scheduled backups, in whole seconds; `None` without them.
    pub backup_every_ms: Option<u64>,
    pub autopilot: Option<Autopilot>,
    /// Milliseconds until the flush of entries about locks, if nodes acknowledge the entries before the
    /// flush.
    pub flush_within_ms: Option<u64>,
    /// Longest session timeout that nodes grant, which is the grace after a restart, too.
    pub max_timeout_ms: u32,
    pub has_only_locks: bool,
    /// Nodes change between the two modes of acknowledgement at their starts.
    pub changes_mode: bool,
}

impl Default for Shape {
    /// Returns three voters with the settings of production, but for a smaller log.
    fn default() -> Self {
        Shape {
            voters: 3,
            learners: 0,
            snapshot_every: 1_000,
            keep_logs: 100,
            segment_bytes: 64 << 10,
            readmits: false,
            history_bytes: None,
            asks_tokens: false,
            sweep_interval_ms: 60_000,
            backup_every_ms: None,
            autopilot: None,
            flush_within_ms: None,
            max_timeout_ms: MAX_TIMEOUT_MS,
            has_only_locks: false,
            changes_mode: false,
        }
    }
}

/// Below this many entries between snapshots, the log is short.
const SHORT: u64 = 20;
/// XORed into the seed of the decision about the history.
const HISTORY_STREAM: u64 = 0x6869_7374_6f72_7900;
/// XORed into the seed of the decision about tokens.
const TOKENS_STREAM: u64 = 0x746f_6b65_6e73_0000;
const TOKENS_PERCENT: usize = 40;
/// XORed into the seed of the decision about the sweep.
const SWEEP_STREAM: u64 = 0x7377_6565_7000_0000;
/// XORed into the seed of the decision about backups.
const BACKUP_STREAM: u64 = 0x6261_636b_7570_0000;
const BACKUP_PERCENT: usize = 30;
/// XORed into the seed of the decision about the autopilot.
const AUTOPILOT_STREAM: u64 = 0x6175_746f_7069_6c00;
const AUTOPILOT_PERCENT: usize = 20;
/// XORed into the seed of the decision about the flush.
const FLUSH_STREAM: u64 = 0x666c_7573_6800_0000;
const WRITTEN_PERCENT: usize = 20;
/// Time after which nodes that change their mode start in the other mode.
const MODE_NANOS: u64 = 7_000_000_000;
const CHANGES_MODE_PERCENT: usize = 25;
const BLACKOUT_TIMEOUT_MS: u32 = 2_500;
const ONLY_LOCKS_PERCENT: usize = 50;

impl Shape {
    pub fn of_run(seed: u64, scenario: Scenario) -> Self {
        let mut rng = Rng::new(seed ^ 0x7368_6170_6573);
        let shape = Self::of(&mut rng);
        let mut flush = Rng::new(seed ^ FLUSH_STREAM);
        let flush_within_ms = Some(flush.pick(&[20, 100, 2_000]));
        let changes_mode = flush.chance(CHANGES_MODE_PERCENT);
        let written = Shape { flush_within_ms, changes_mode, ..shape };
        if scenario == Scenario::Blackouts {
            // Most of the run is beside a grace.
            let has_only_locks = flush.chance(ONLY_LOCKS_PERCENT);
            return Shape { max_timeout_ms: BLACKOUT_TIMEOUT_MS, has_only_locks, ..written };
        }
        let shape = if scenario == Scenario::All && flush.chance(WRITTEN_PERCENT) { written } else { shape };
        if scenario != Scenario::Cuts {
            let is_piloted =
                scenario == Scenario::All && Rng::new(seed ^ AUTOPILOT_STREAM).chance(AUTOPILOT_PERCENT);
            return if is_piloted {
                shape.with_autopilot(&mut Rng::new(!seed ^ AUTOPILOT_STREAM))
            } else {
                shape
            };
        }
        // Larger clusters have most shapes of cuts that leave a quorum.
        let voters = rng.pick(&[3, 5, 7]);
        Shape { voters, learners: usize::from(rng.chance(20)), ..shape }
    }

    /// Makes a node that starts now flush each entry first, at times, if nodes change their mode.
    pub(super) fn choose_mode(&self, locks: &mut LocksConfig, now: Nanos, place: usize) {
        if self.changes_mode && (now.0 / MODE_NANOS + place as u64).is_multiple_of(2) {
            *locks = LocksConfig::default();
        }
    }

    /// Draws a shape, mostly with three nodes as in production. Logs are short, so that lagging nodes need
    /// snapshots.
    pub fn of(rng: &mut Rng) -> Self {
        let (voters, learners) = match rng.below(100) {
            0..70 => (3, 0),
            70..80 => (5, 0),
            80..92 => (3, 1),
            _ => (1, 0),
        };
        // A third of the runs has very short logs: a node that is cut off for a moment needs a snapshot.
        let (snapshot_every, keep_logs) = if rng.chance(33) {
            (3 + rng.below(18) as u64, rng.below(6) as u64)
        } else {
            (20 + rng.below(381) as u64, 5 + rng.below(96) as u64)
        };
        // Small, so that the log goes through many segments, and disks stay small.
        let segment_bytes = rng.pick(&[12, 16, 32, 64]) << 10;
        let readmits = rng.chance(50);
        // Drawn from a separate stream, so that seeds from before this setting keep their runs. A small
        // history has many segments.
        let mut beside = Rng::new(rng.clone().u64() ^ HISTORY_STREAM);
        let history_bytes = beside.chance(60).then(|| beside.pick(&[64 << 10, 1 << 20, 256 << 20]));
        let asks_tokens = Rng::new(rng.clone().u64() ^ TOKENS_STREAM).chance(TOKENS_PERCENT);
        let sweep_interval_ms = Rng::new(rng.clone().u64() ^ SWEEP_STREAM).pick(&[500, 2_000, 60_000]);
        let mut beside = Rng::new(rng.clone().u64() ^ BACKUP_STREAM);
        let backup_every_ms = beside.chance(BACKUP_PERCENT).then(|| beside.pick(&[2_000, 7_000]));
        Shape {
            voters,
            learners,
            snapshot_every,
            keep_logs,
            segment_bytes,
            readmits,
            history_bytes,
            asks_tokens,
            sweep_interval_ms,
            backup_every_ms,
            autopilot: None,
            flush_within_ms: None,
            max_timeout_ms: MAX_TIMEOUT_MS,
            has_only_locks: false,
            changes_mode: false,
        }
    }

    /// Draws the autopilot's settings, and members for which the settings matter. A wiped voter that is
    /// removed as dead has no claim to vote again, so nodes either readmit or remove.
    fn with_autopilot(self, rng: &mut Rng) -> Self {
        let removes = rng.chance(70);
        let autopilot = Autopilot {
            promote_after_ms: rng.pick(&[1_000, 3_000]),
            remove_dead_after_ms: removes.then(|| rng.pick(&[500, 1_000, 3_000])),
            min_voters: 3,
        };
        let (voters, learners) = rng.pick(&[(3, 1), (3, 2), (4, 1), (5, 0)]);
        let readmits = self.readmits && !removes;
        Shape { voters, learners, readmits, autopilot: Some(autopilot), ..self }
    }

    /// Returns the minimum of voters if the leader removes dead voters.
    pub fn removes_down_to(&self) -> Option<usize> {
        self.autopilot.filter(|it| it.remove_dead_after_ms.is_some()).map(|it| it.min_voters)
    }

    /// Returns whether a node that is cut off for a moment needs a snapshot.
    pub fn is_short(&self) -> bool {
        self.snapshot_every < SHORT
    }

    pub fn nodes(&self) -> usize {
        self.voters + self.learners
    }
}

/// Returns the choices that a seed enables: none for half of the seeds, half of all choices for the rest.
pub fn choices_of(seed: u64) -> Vec<Choice> {
    let mut rng = Rng::new(seed ^ 0x0063_686f_6963_6573);
    if rng.chance(50) {
        return Vec::new();
    }
    Choice::ALL.iter().copied().filter(|_| rng.chance(50)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn most_seeds_have_three_nodes_and_some_one_five_or_a_learner() {
        let mut seen: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        let (mut hasty, mut readmitting) = (0, 0);
        for seed in 0..1_000 {
            let shape = Shape::of(&mut Rng::new(seed));
            *seen.entry((shape.voters, shape.learners)).or_default() += 1;
            assert!((3..=400).contains(&shape.snapshot_every) && shape.keep_logs <= 100);
            readmitting += u32::from(shape.readmits);
            hasty += u32::from(shape.is_short());
        }
        assert!((250..420).contains(&hasty) && (400..600).contains(&readmitting), "{hasty} {readmitting}");
        assert!(seen[&(3, 0)] > 600, "{seen:?}");
        assert!([(5, 0), (3, 1), (1, 0)].into_iter().all(|shape| seen[&shape] > 40), "{seen:?}");
    }
}
