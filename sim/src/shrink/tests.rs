//! Shrinking with made-up tests in place of runs.

use std::time::Duration;

use rowlock_world::time::Nanos;

use super::shrink;
use crate::fault::{Fault, Ground, Kind, Mix, Pace, Script, Target, generate};

/// Returns a script with faults of all kinds.
fn busy(seed: u64) -> Script {
    let ground = Ground {
        nodes: 5,
        learners: 0,
        least_voters: None,
        clients: 4,
        begin: Nanos::from_millis(1_000),
        quiet: Nanos::from_millis(61_000),
    };
    generate(seed, &ground, &Mix::only(&Kind::ALL).at_pace(Pace::PerMinute(60)))
}

fn has(script: &Script, kind: Kind) -> bool {
    script.steps().iter().any(|step| step.fault.kind() == kind)
}

#[test]
fn a_failure_without_faults_shrinks_to_nothing_at_once() {
    let mut asked = 0;
    let small = shrink(
        busy(1),
        |_| {
            asked += 1;
            true
        },
        1_000,
    );
    assert_eq!((small, asked), (Script::default(), 1));
}

#[test]
fn two_faults_that_must_come_together_remain() {
    for seed in 0..50 {
        let fails = |script: &Script| has(script, Kind::Kill) && has(script, Kind::ClockJump);
        let script = busy(seed);
        if !fails(&script) {
            continue;
        }
        let small = shrink(script, fails, 2_000);
        assert!(fails(&small));
        assert_eq!(small.steps().len(), 2, "seed {seed}:\n{small}");
    }
}

#[test]
fn a_failure_that_needs_many_faults_keeps_these() {
    let count = |script: &Script| {
        script.steps().iter().filter(|step| matches!(step.fault, Fault::Disconnect { .. })).count()
    };
    let lines: String = (0..40).map(|n| format!("{n}s disconnect client1\n{n}s transfer node1\n")).collect();
    let small = shrink(lines.parse().unwrap(), |script| count(script) >= 7, 2_000);
    assert_eq!((small.steps().len(), count(&small)), (7, 7), "{small}");
}

#[test]
fn a_fault_becomes_as_short_as_the_failure_allows() {
    // The node must be cut off at 12.0 s, and for 800 ms.
    let fails = |script: &Script| {
        script.steps().iter().any(|step| {
            let lasts = step.fault.lasts().unwrap_or_default();
            let at = Nanos::from_millis(12_000);
            matches!(step.fault, Fault::Isolate { .. })
                && lasts >= Duration::from_millis(800)
                && step.at <= at
                && step.at + lasts > at
        })
    };
    let script = "3.123456s isolate leader for 20s\n4s kill client1 for 3s\n".parse().unwrap();
    let small = shrink(script, fails, 2_000);
    let step = &small.steps()[0];
    assert_eq!(small.steps().len(), 1, "{small}");
    assert!(fails(&small));
    assert!(step.fault.lasts().unwrap() <= Duration::from_millis(1_000), "{small}");
    assert!(step.to_string().len() < "11.123s isolate leader for 999.123ms".len(), "{small}");
}

#[test]
fn faults_become_simpler() {
    let cases = [
        // Nodes 1 and 2 must be on different sides.
        (
            "1s partition node1 node3 client1 | node2 client2 | client3 for 5s",
            "partition node1 | node2",
            (|fault: &Fault| match fault {
                Fault::Partition { groups, .. } => {
                    let side = |n| groups.iter().position(|group| group.contains(&Target::Node(n)));
                    side(1).is_some() && side(2).is_some() && side(1) != side(2)
                }
                _ => false,
            }) as fn(&Fault) -> bool,
        ),
        ("1s power-loss nodes at-operation 9 for 5s", "kill leader", |fault| fault.lasts().is_some()),
        (
            "1s clock-jump node1 -3600000ms",
            "clock-jump node1 -",
            |fault| matches!(fault, Fault::ClockJump { by_ms, .. } if *by_ms < -5),
        ),
    ];
    for (line, simple, needed) in cases {
        let small = shrink(
            line.parse().unwrap(),
            |script| script.steps().iter().any(|step| needed(&step.fault)),
            500,
        );
        assert!(small.to_string().contains(simple), "{small}");
    }
}

#[test]
fn the_budget_bounds_the_tests_and_a_failing_script_returns() {
    for budget in [0, 1, 2, 5, 20] {
        let mut asked = 0;
        let small = shrink(
            busy(3),
            |script| {
                asked += 1;
                script.steps().len() > 4
            },
            budget,
        );
        assert!(asked <= budget && small.steps().len() > 4);
    }
}

#[test]
fn shrinking_ends_whatever_fails() {
    for seed in 0..30u64 {
        let mut asked = 0u64;
        // A question without sense, that answers the same way each time.
        let fails = |script: &Script| {
            asked += 1;
            script.to_string().bytes().fold(seed, |sum, b| sum.wrapping_mul(31) + u64::from(b)) % 3 == 0
        };
        shrink(busy(seed), fails, 100_000);
        assert!(asked < 100_000, "seed {seed} went on for ever");
    }
}

#[test]
fn over_budget_scripts_stay_so() {
    let script: Script = "over-budget\n1s bit-rot node1 3bits\n".parse().unwrap();
    assert!(
        shrink(script, |script| script.is_over_budget() && has(script, Kind::BitRot), 100).is_over_budget()
    );
}
