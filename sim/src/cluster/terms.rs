//! What the checkers may demand of a run, depending on what its script breaks.
//!
//! Invariant: only promises about time are waived, and only where the documentation waives them. A wrong
//! answer is wrong under any fault.

use std::time::Duration;

use rowlock_world::time::Nanos;

use crate::fault::{Fault, Kind, Script, Step, Target};
use crate::invariants::{Disturbances, Terms};

/// The documented bound: the rates of two clocks differ by no more (in millionths of the slower one).
const DRIFT_MAX: i128 = 50_000;
const MILLION: i128 = 1_000_000;
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Returns the demands that checkers may make under this script.
pub(super) fn terms(script: &Script) -> Terms {
    let mut terms = Terms {
        has_bounded_clocks: has_bounded_clocks(script.steps()),
        has_true_clocks: !script.steps().iter().any(|step| matches!(step.fault, Fault::ClockRate { .. })),
        starts_with_right_clocks: starts_with_right_clocks(script.steps()),
        has_faults: !script.steps().is_empty(),
        has_room: !script.steps().iter().any(|step| matches!(step.fault, Fault::DiskFull { .. })),
        hears_of_hang_ups: !script.steps().iter().any(|step| hides_hang_ups(&step.fault)),
        disturbances: disturbances(script.steps()),
        ..Terms::default()
    };
    if script.is_over_budget() {
        // The majority that could go on may be gone for good.
        (terms.grant_within, terms.answer_within) = (FOREVER, FOREVER);
    }
    terms
}

/// Whether a connected quorum is enough for service. A majority may be gone for good in a script over budget;
/// and a new cluster opens no session before the clients of the old one have given up.
pub(super) fn owes_service(script: &Script) -> bool {
    let is_reborn = |step: &Step| matches!(step.fault.kind(), Kind::RestoreBackup | Kind::Recover);
    !script.is_over_budget() && !script.steps().iter().any(is_reborn)
}

/// A cluster has come up by then.
const UP: Nanos = Nanos::from_millis(3_000);
/// A fault that has ended is felt for at most this long.
const AFTERMATH: Duration = Duration::from_secs(8);

/// When something other than load is wrong, from the cluster's beginning on.
fn disturbances(steps: &[Step]) -> Disturbances {
    let times = steps.iter().filter_map(|step| match step.fault {
        Fault::Flood { .. } | Fault::SlowProcessor { .. } | Fault::NewChoices { .. } => None,
        // Who comes when is open: operators do one thing after another, and nodes that have lost something
        // wait for others.
        Fault::AddLearner { .. }
        | Fault::AddVoter { .. }
        | Fault::Remove { .. }
        | Fault::Replace { .. }
        | Fault::Readdress { .. }
        | Fault::Transfer { .. }
        | Fault::Wipe { .. }
        | Fault::RotTail { .. }
        | Fault::Restore { .. }
        | Fault::RestoreBackup { .. }
        | Fault::Recover { .. }
        | Fault::DieWaiting { .. } => Some((step.at, Nanos(u64::MAX))),
        _ => Some((step.at, step.ends().map_or(Nanos(u64::MAX), |ends| ends + AFTERMATH))),
    });
    Disturbances::new([(Nanos(0), UP)].into_iter().chain(times).collect())
}

/// Whether no two clocks ever differ by more than the bound. A role may be any host, so every two changes of
/// a rate count as those of two hosts, and one host's clock is always right.
fn has_bounded_clocks(steps: &[Step]) -> bool {
    let rate = |step: &Step| match step.fault {
        Fault::ClockRate { ppm, .. } => i128::from(ppm),
        _ => 0,
    };
    steps.iter().filter(|step| rate(step) != 0).all(|begins| {
        let at = begins.at;
        let then = steps.iter().filter(|step| step.at <= at && step.ends().is_none_or(|end| end >= at));
        let (mut slowest, mut fastest) = (0, 0);
        for ppm in then.map(rate) {
            (slowest, fastest) = (ppm.min(slowest), ppm.max(fastest));
        }
        (fastest - slowest) * MILLION <= DRIFT_MAX * (MILLION + slowest)
    })
}

/// Whether no wall clock jumps, or no node starts but those that start the cluster.
fn starts_with_right_clocks(steps: &[Step]) -> bool {
    let jumps = |step: &Step| matches!(step.fault, Fault::ClockJump { .. });
    !steps.iter().any(jumps) || !steps.iter().any(|step| starts_nodes(&step.fault))
}

/// What a client sends to a node may be late, or is not read.
fn hides_hang_ups(fault: &Fault) -> bool {
    let is_between = matches!(
        fault,
        Fault::Partition { .. } | Fault::OneWay { .. } | Fault::Clog { .. } | Fault::Lose { .. }
    );
    let is_client = |target: &Target| matches!(target, Target::Client(_) | Target::AllClients);
    matches!(fault, Fault::Pause { .. } | Fault::RotTail { .. })
        || is_between && fault.targets().iter().any(is_client)
}

/// A node starts after it, or may: what damages a disk may stop its node.
fn starts_nodes(fault: &Fault) -> bool {
    match fault {
        Fault::Kill { target, .. } => !matches!(target, Target::Client(_) | Target::AllClients),
        Fault::PowerLoss { .. }
        | Fault::SyncFailure { .. }
        | Fault::DiskFull { .. }
        | Fault::BitRot { .. }
        | Fault::LoseDisk { .. }
        | Fault::Wipe { .. }
        | Fault::Readdress { .. }
        | Fault::RotTail { .. }
        | Fault::Restore { .. }
        | Fault::RestoreBackup { .. }
        | Fault::Recover { .. }
        | Fault::AddLearner { .. }
        | Fault::AddVoter { .. }
        | Fault::Remove { .. }
        | Fault::Replace { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Terms {
        terms(&text.parse().expect("a script"))
    }

    #[test]
    fn clocks_that_differ_by_more_than_the_bound_at_one_time_are_unbounded() {
        for (script, is_bounded) in [
            ("3s kill leader for 1s", true),
            ("3s clock-rate node1 +50000ppm for 4s", true),
            ("3s clock-rate node1 +50001ppm for 4s", false),
            ("3s clock-rate node1 -48000ppm for 4s", false),
            ("3s clock-rate node1 -47000ppm for 4s", true),
            ("3s clock-rate node1 -24000ppm for 4s\n6s clock-rate client1 +24000ppm for 4s", true),
            ("3s clock-rate node1 -30000ppm for 4s\n6s clock-rate client1 +30000ppm for 4s", false),
            ("3s clock-rate node1 -30000ppm for 4s\n8s clock-rate client1 +30000ppm for 4s", true),
        ] {
            assert_eq!(of(script).has_bounded_clocks, is_bounded, "{script}");
        }
    }

    #[test]
    fn floods_and_slow_processors_disturb_no_quiet_client_and_all_other_faults_do() {
        let is_spared = |script: &str, from, to| {
            of(script).disturbances.spare(Nanos::from_millis(from), Nanos::from_millis(to))
        };
        let load = "4s flood leader by reads x1 for 5s\n4s slow-processor nodes x10 for 5s";
        assert!(is_spared(load, 4_000, 9_000) && !is_spared(load, 2_999, 9_000));
        let killed = "10s kill leader for 2s";
        assert!(is_spared(killed, 4_000, 9_999) && !is_spared(killed, 9_000, 10_000));
        assert!(!is_spared(killed, 19_000, 19_500) && is_spared(killed, 20_001, 30_000));
        assert!(!is_spared("5s kill leader for good", 90_000, 91_000));
        assert!(!is_spared("5s add-voter node4", 90_000, 91_000));
    }

    #[test]
    fn a_node_that_starts_behind_a_jump_may_take_the_logs_time_with_it() {
        for (script, is_right) in [
            ("3s clock-jump node1 -30000ms\n4s kill client1 for 1s\n5s isolate leader for 4s", true),
            ("3s kill node1 for 1s\n4s power-loss leader for 2s", true),
            ("3s clock-jump leader +30000ms\n4s kill node1 for 1s", false),
            ("3s clock-jump client1 +30000ms\n4s add-voter node4", false),
        ] {
            assert_eq!(of(script).starts_with_right_clocks, is_right, "{script}");
        }
    }

    #[test]
    fn hang_ups_are_heard_of_where_nothing_is_between_clients_and_nodes() {
        for (script, is_heard) in [
            ("3s clog follower1 -> leader by 10ms..90ms for 4s\n4s regain follower1 after 9ms for 3s", true),
            ("3s clog client1 -> node1 by 10ms..90ms for 4s", false),
            ("3s partition node1 clients | node2 for 4s", false),
            ("3s pause node1 for 1s", false),
        ] {
            assert_eq!(of(script).hears_of_hang_ups, is_heard, "{script}");
        }
    }

    #[test]
    fn progress_is_demanded_of_clusters_that_keep_a_majority_only() {
        let usual = Terms::default();
        assert_eq!(of("3s bit-rot node1 7bits").answer_within, usual.answer_within);
        let over = of("over-budget\n3s bit-rot node1 7bits");
        assert!(over.answer_within > usual.answer_within && over.grant_within > usual.grant_within);
        assert!(over.has_bounded_clocks, "that is another matter");
    }
}
