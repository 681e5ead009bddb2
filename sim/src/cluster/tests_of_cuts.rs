//! serves-while-a-quorum-is-connected: one shape of a cut at a time, in clusters of three, five and seven.

use std::time::Duration;

use rowlock_world::time::Nanos;
use rowlock_world::trace::{Happening, What};

use super::shape::Shape;
use super::{Plan, Scenario, run};

const CUT: Nanos = Nanos::from_millis(2_000);

/// Returns a seed of `cuts` whose cluster has this many voters and no learner.
fn seed_of(voters: usize) -> u64 {
    let has = |shape: Shape| (shape.voters, shape.learners) == (voters, 0);
    (1..).find(|seed| has(Shape::of_run(*seed, Scenario::Cuts))).expect("a third of the seeds")
}

/// Returns the time from the cut to the next election of a leader, if there was one.
fn new_leader_after(voters: usize, faults: &[&str]) -> Option<Duration> {
    let lines: Vec<String> = faults.iter().map(|fault| format!("2s {fault} for 7s")).collect();
    let script = lines.join("\n").parse().expect("a script");
    let (seed, scenario, mutant) = (seed_of(voters), Scenario::Cuts, None);
    let outcome = run(&Plan { seed, seconds: 9, scenario, script: Some(script), mutant, record: true });
    assert_eq!(outcome.violation, None, "{voters} voters: {faults:?}");
    let mut terms = outcome.record.iter().filter(|it| matches!(it.what, What::Leads { .. }));
    let next: Option<&Happening> = terms.find(|it| it.at > CUT && it.at < CUT + Duration::from_secs(7));
    next.map(|it| it.at - CUT)
}

/// The leader reaches one node of the only connected quorum (openraft 2080): without the mend, that node kept
/// the leader's lease for the duration of the cut. Or the leader only sends, or only receives.
#[test]
fn a_leader_out_of_the_connected_quorum_is_replaced_in_3_s() {
    let of_five = "bridge leader | follower1 | follower2 follower3";
    let of_seven = "bridge leader | follower1 | follower2 follower3 follower4";
    let shapes: [(usize, &[&str]); 8] = [
        (5, &[of_five, "isolate follower4"]),
        (5, &[of_five, "kill follower4"]),
        (5, &[of_five, "one-way follower4 -> nodes"]),
        (7, &[of_seven, "isolate follower5", "kill follower6"]),
        (3, &["one-way leader -> follower1 follower2"]),
        (3, &["one-way follower1 follower2 -> leader"]),
        (5, &["one-way leader -> follower2 follower3 follower4"]),
        (7, &["one-way follower1 follower2 follower3 follower4 -> leader"]),
    ];
    for (voters, faults) in shapes {
        let took = new_leader_after(voters, faults).expect("another node leads");
        assert!(took < Duration::from_secs(3), "{voters} voters, {faults:?}: after {took:?}");
    }
}

/// A leader that keeps a quorum stays, although peers call for votes: in a chain, with one-way links, and
/// beside nodes that reach a part of the quorum only.
#[test]
fn a_leader_with_a_quorum_stays_despite_partial_cuts() {
    let shapes: [(usize, &[&str]); 4] = [
        (3, &["bridge leader | follower1 | follower2"]),
        (3, &["one-way follower1 -> leader"]),
        (5, &["bridge leader follower1 | follower2 | follower3 follower4"]),
        (7, &["one-way leader -> follower4 follower5 follower6", "isolate follower4"]),
    ];
    for (voters, faults) in shapes {
        assert_eq!(new_leader_after(voters, faults), None, "{voters} voters, {faults:?}: another node leads");
    }
}
