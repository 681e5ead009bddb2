//! Which release a node runs. In some runs there are two: nodes go to the new one and back to the old one as
//! they are started again, until a moment from which on all that start are of the new one. Then the leader
//! may raise the version of the cluster.
//!
//! The new release is this code with one version more. Its runs are drawn from a random stream of their own,
//! so the faults and the work of a seed are the same without it.

use std::time::Duration;

use rowlock_coordinator::NodeConfig;
use rowlock_coordinator::config::{Finalize, UpgradeConfig};
use rowlock_types::versions::Versions;
use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

/// Percentage of runs with two releases.
const MIXED_PERCENT: usize = 30;
/// The health that the leader wants to see. Faults leave not much more at a time.
const HEALTH_MS: u64 = 2_000;

/// Releases of the nodes of a run.
pub(super) struct Releases {
    rng: Rng,
    /// From then on all are of the new release. `None`: there is no new one.
    all_new_from: Option<Nanos>,
}

impl Releases {
    /// All nodes run this release.
    pub(super) fn one() -> Releases {
        Releases { rng: Rng::new(0), all_new_from: None }
    }

    /// Of this seed; faults and load last for this many seconds.
    pub(super) fn of(seed: u64, seconds: u64) -> Releases {
        let mut rng = Rng::new(seed ^ 0x7265_6c65_6173_6573);
        let is_mixed = rng.chance(MIXED_PERCENT);
        // A third has the new release from the beginning: its version is raised early.
        let begun = Nanos::default();
        let after_ms = if rng.chance(33) { 0 } else { rng.below(600 * seconds as usize) as u64 };
        Releases { rng, all_new_from: is_mixed.then(|| begun + Duration::from_millis(after_ms)) }
    }

    pub(super) fn are_two(&self) -> bool {
        self.all_new_from.is_some()
    }

    /// Chooses the release for a start at this time. Gives what is worth a note in the story.
    ///
    /// A node that is not certainly a member starts with the newest release, as an operator brings one in:
    /// the leader asks members only before it raises the version, and a cluster that has raised it refuses
    /// the old release for ever (seed 5,215).
    pub(super) fn choose(&mut self, now: Nanos, is_member: bool, config: &mut NodeConfig) -> Option<String> {
        let all_new_from = self.all_new_from?;
        let is_for_good = now >= all_new_from;
        let is_new = is_for_good || self.rng.chance(50) || !is_member;
        if is_new {
            config.versions = Versions::of_a_rehearsal();
        }
        // A leader that has begun before the way back is closed never closes it.
        let finalize = if is_for_good { Finalize::Auto } else { Finalize::Manual };
        config.upgrade = UpgradeConfig { finalize, health_ms: HEALTH_MS };
        Some(format!("runs {}", config.versions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_runs_have_two_releases_and_no_old_one_starts_after_the_new_one_may_finalize() {
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
