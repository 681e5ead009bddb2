//! Demands that the checkers may make of a run, depending on the faults of its script.
//!
//! Invariant: only promises about time are waived, and only where the documentation waives them. A wrong
//! answer is wrong under any fault.

use std::time::Duration;

use rowlock_world::time::Nanos;

use super::shape::Shape;
use crate::fault::{Fault, Script, Step, Target};
use crate::invariants::{Disturbances, Terms};

/// Documented bound on the difference between two clocks' rates, in millionths of the slower rate.
const DRIFT_MAX: i128 = 50_000;
const MILLION: i128 = 1_000_000;

/// Time for a new leader after the last one, and for the sweep's entry.
const SWEEP: Duration = Duration::from_secs(3);

/// Returns the demands that checkers may make of nodes of this shape under this script.
pub(super) fn terms(script: &Script, shape: &Shape) -> Terms {
    Terms {
        has_bounded_clocks: has_bounded_clocks(script.steps()),
        has_true_clocks: !script.steps().iter().any(|step| matches!(step.fault, Fault::ClockRate { .. })),
        starts_with_right_clocks: starts_with_right_clocks(script.steps()),
        has_faults: !script.steps().is_empty(),
        has_history: shape.history_bytes.is_some(),
        has_room: !script.steps().iter().any(|step| matches!(step.fault, Fault::DiskFull { .. })),
        hears_of_hang_ups: !script.steps().iter().any(|step| hides_hang_ups(&step.fault)),
        swept_within: (!script.is_over_budget())
            .then(|| Duration::from_millis(shape.sweep_interval_ms) + SWEEP),
        disturbances: disturbances(script.steps()),
        // The majority needed for progress may be gone for good.
        owes_service: !script.is_over_budget() && shape.flush_within_ms.is_none(),
        forgets: shape.flush_within_ms.is_some(),
        removes_down_to: shape.removes_down_to(),
    }
}

/// Returns whether a connected quorum must serve. A script over budget may destroy a majority for good, and a
/// new cluster opens no session before the clients of the old cluster have given up.
pub(super) fn owes_service(script: &Script) -> bool {
    !script.is_over_budget() && !script.is_reborn()
}

/// Time by which a cluster has come up.
const UP: Nanos = Nanos::from_millis(3_000);
/// Longest time for which an ended fault has consequences.
const AFTERMATH: Duration = Duration::from_secs(8);

/// Returns the periods with faults other than load, including the cluster's start.
fn disturbances(steps: &[Step]) -> Disturbances {
    let times = steps.iter().filter_map(|step| match step.fault {
        Fault::Flood { .. } | Fault::SlowProcessor { .. } | Fault::NewChoices { .. } => None,
        // Open end: operators do one job after another, and nodes that have lost data wait for their peers.
        Fault::AddLearner { .. }
        | Fault::AddVoter { .. }
        | Fault::Remove { .. }
        | Fault::Replace { .. }
        | Fault::Readdress { .. }
        | Fault::Transfer { .. }
        | Fault::Depose { .. }
        | Fault::Wipe { .. }
        | Fault::RotTail { .. }
        | Fault::Restore { .. }
        | Fault::RestoreBackup { .. }
        | Fault::Recover { .. }
        | Fault::DieWaiting { .. } => Some((step.at, Nanos(u64::MAX))),
        _ => Some((step.at, step.ends().map_or(Nanos(u64::MAX), |ends| ends + AFTERMATH))),
    });
    let resets =
        steps.iter().filter(|step| matches!(step.fault, Fault::Reset { .. } | Fault::Disconnect { .. }));
    let resets = resets.map(|step| step.at).collect();
    Disturbances::new([(Nanos(0), UP)].into_iter().chain(times).collect(), resets)
}

/// Returns whether no two clocks ever differ by more than the bound. A role may be any host, so any two
/// changes of a rate count as changes on two hosts, and the clock of some host is always right.
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

/// Returns whether no wall clock jumps, or no node starts after the start of the cluster.
fn starts_with_right_clocks(steps: &[Step]) -> bool {
    let jumps = |step: &Step| matches!(step.fault, Fault::ClockJump { .. });
    !steps.iter().any(jumps) || !steps.iter().any(|step| starts_nodes(&step.fault))
}

/// Returns whether a fault may delay or hide a client's hang-up from a node.
fn hides_hang_ups(fault: &Fault) -> bool {
    let is_between = matches!(
        fault,
        Fault::Partition { .. }
            | Fault::OneWay { .. }
            | Fault::Clog { .. }
            | Fault::Lose { .. }
            // Of some resets only the client learns.
            | Fault::Reset { .. }
    );
    let is_client = |target: &Target| matches!(target, Target::Client(_) | Target::AllClients);
    matches!(fault, Fault::Pause { .. } | Fault::RotTail { .. } | Fault::Disconnect { .. })
        || is_between && fault.targets().iter().any(is_client)
}

/// Returns whether a node starts, or may start, after the fault: damage to a disk may stop its node.
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
        | Fault::Replace { .. }
        | Fault::Depose { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rowlock_world::rng::Rng;

    use super::*;

    fn of(text: &str) -> Terms {
        terms(&text.parse().expect("a script"), &Shape::of(&mut Rng::new(1)))
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
    fn every_fault_except_load_disturbs_quiet_clients() {
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
    fn a_node_started_after_a_clock_jump_may_shift_log_time() {
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
    fn nodes_hear_hang_ups_unless_faults_affect_client_links() {
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
    fn only_clusters_with_a_majority_owe_progress() {
        assert!(of("3s bit-rot node1 7bits").owes_service);
        let over = of("over-budget\n3s bit-rot node1 7bits");
        assert!(!over.owes_service && over.has_bounded_clocks, "clocks are another matter");
    }
}
