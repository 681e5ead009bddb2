//! Release that a node runs. Some runs have two releases: each restarted node draws the new or the old
//! release, until a moment after which all starting nodes run the new release. Then the leader may raise the
//! cluster's version, unless an operator holds it.
//!
//! The new release is this code with one more version. The choices come from a random stream of their own, so
//! that a seed has the same faults and work with one release.

use std::time::Duration;

use rowlock_coordinator::NodeConfig;
use rowlock_coordinator::config::{Finalize, UpgradeConfig};
use rowlock_state::version::Versions;
use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

use crate::history::HEALTH;

/// Percentage of runs with two releases.
const MIXED_PERCENT: usize = 30;
/// Percentage of these runs whose operator holds the version for a while.
const HELD_PERCENT: usize = 70;

/// An operator's hold of the version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) from: Nanos,
    pub(super) lasts: Duration,
    /// The operator holds the version just before the leader would raise it.
    pub(super) is_late: bool,
}

/// Releases of the nodes of a run.
pub(super) struct Releases {
    rng: Rng,
    /// Time from which all starting nodes run the new release. `None`: no new release exists.
    all_new_from: Option<Nanos>,
    hold: Option<Hold>,
}

impl Releases {
    /// Draws the releases of a run. The commands that restore and recover are of one release, which refuses
    /// the state of a later release.
    pub(super) fn of_run(seed: u64, seconds: u64, is_reborn: bool) -> Releases {
        let one = || Releases { rng: Rng::new(0), all_new_from: None, hold: None };
        if is_reborn { one() } else { Releases::of(seed, seconds) }
    }

    /// Draws the releases of a seed; faults and load last for `seconds` seconds.
    pub(super) fn of(seed: u64, seconds: u64) -> Releases {
        let mut rng = Rng::new(seed ^ 0x7265_6c65_6173_6573);
        let is_mixed = rng.chance(MIXED_PERCENT);
        // In a third of the mixed runs the new release is there from the beginning: the leader raises the
        // version early.
        let begun = Nanos::default();
        let after_ms = if rng.chance(33) { 0 } else { rng.below(600 * seconds as usize) as u64 };
        let all_new_from = begun + Duration::from_millis(after_ms);
        let mut beside = Rng::new(rng.clone().u64());
        let mut millis = |from: u64, most| Duration::from_millis(from + beside.below(most) as u64);
        let (from, lasts) = (all_new_from + millis(300, 3_500), millis(500, 8_000));
        let hold = Hold { from, lasts, is_late: beside.chance(50) };
        let is_held = is_mixed && beside.chance(HELD_PERCENT);
        Releases { rng, all_new_from: is_mixed.then_some(all_new_from), hold: is_held.then_some(hold) }
    }

    /// Returns the operator's hold of the version, if there is one.
    pub(super) fn hold(&self) -> Option<Hold> {
        self.hold
    }

    pub(super) fn are_two(&self) -> bool {
        self.all_new_from.is_some()
    }

    /// Returns whether all nodes that start at this time run the new release, and so do later ones.
    pub(super) fn are_new_for_good(&self, now: Nanos) -> bool {
        self.all_new_from.is_some_and(|from| now >= from)
    }

    /// Chooses the release for a start at this time. Returns a note for the story.
    ///
    /// A node that is not certainly a member starts with the newest release, as an operator would start it:
    /// the leader checks members only before raising the version, and a cluster with the raised version
    /// refuses the old release forever (seed 5,215).
    pub(super) fn choose(&mut self, now: Nanos, is_member: bool, config: &mut NodeConfig) -> Option<String> {
        self.all_new_from?;
        let is_for_good = self.are_new_for_good(now);
        let is_new = is_for_good || self.rng.chance(50) || !is_member;
        if is_new {
            config.versions = Versions::of_a_rehearsal();
        }
        // A leader that could raise the version before this moment would strand nodes that restart with the
        // old release.
        let finalize = if is_for_good { Finalize::Auto } else { Finalize::Manual };
        let health_ms = u64::try_from(HEALTH.as_millis()).unwrap_or(u64::MAX);
        config.upgrade = UpgradeConfig { finalize, health_ms };
        Some(format!("runs {}", config.versions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_node_starts_the_old_release_after_the_new_may_finalize() {
        let (mut mixed, mut back) = (0, 0);
        for seed in 0..300 {
            let mut releases = Releases::of(seed, 10);
            let mut before = None;
            for second in 0..20 {
                let mut config = NodeConfig::single("/data");
                let now = Nanos::default() + Duration::from_secs(second);
                let told = releases.choose(now, true, &mut config);
                let is_new = config.versions != Versions::of_this_release();
                assert_eq!(told.is_some(), releases.all_new_from.is_some());
                assert!(!is_new || told.is_some(), "a run of one release has no other");
                let may_finalize = told.is_some() && config.upgrade.finalize == Finalize::Auto;
                assert!(!may_finalize || is_new, "seed {seed}");
                let mut stranger = NodeConfig::single("/data");
                let told = releases.choose(now, false, &mut stranger);
                assert!(told.is_none() || stranger.versions != Versions::of_this_release(), "seed {seed}");
                back += u32::from(before == Some(true) && !is_new);
                before = Some(is_new);
            }
            mixed += u32::from(releases.all_new_from.is_some());
        }
        assert!((60..130).contains(&mixed) && back > 30, "{mixed} mixed, {back} times back");
    }
}
