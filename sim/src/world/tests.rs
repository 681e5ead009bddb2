//! Whole runs: that they repeat, that they pass, and that they catch what they are there to catch.

use super::*;
use crate::mutant::MUTANTS;

fn plan(seed: u64) -> Plan {
    Plan { seed, steps: 8_000, mutant: None, print: false }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let (first, second) = (run(plan(11)), run(plan(11)));
    assert_eq!(first, second);
    assert_ne!(first.hash, run(plan(12)).hash);
}

#[test]
fn seeds_pass_and_everything_happens() {
    let mut all = Stats::default();
    for seed in 0..12 {
        let outcome = run(plan(seed));
        assert_eq!(outcome.violation, None, "seed {seed}");
        all += &outcome.stats;
    }
    let text = all.to_string();
    for count in text.split(' ') {
        assert!(!count.ends_with("=0"), "never happened: {count} in {text}");
    }
}

#[test]
fn every_mutant_is_caught() {
    for mutant in MUTANTS {
        let caught =
            (0..200).find(|seed| run(Plan { mutant: Some(mutant), ..plan(*seed) }).violation.is_some());
        assert!(caught.is_some(), "{mutant:?} lived");
    }
}
