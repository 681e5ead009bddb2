//! A guided search. Each fresh seed is chosen among many, so that rare pairs of traits (faults, operations,
//! settings) occur together. The corpus keeps runs that took a rare branch, and continues these in other
//! ways.
//!
//! A continuation has the seed and the faults of the kept run until the rare branch was taken. After that the
//! run draws new random choices ([`Fault::NewChoices`]), and often new faults. The script contains all of
//! this, so a continuation replays and shrinks like any run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use rowlock_env::rare::Rare;
use rowlock_world::rng::Rng;
use rowlock_world::time::Nanos;

use crate::cluster::{CLIENTS, Outcome, Scenario, Shape, Trait, traits_of};
use crate::fault::{Fault, Kind, Script, Step};

/// Runs from fresh seeds at the start of a search, while every branch is still rare.
const BEFORE_KEPT: usize = 100;
/// Percentage of later runs that begin with a fresh seed.
const FRESH: usize = 40;
/// Candidates for a fresh seed.
const CANDIDATES: usize = 64;
/// Upper bound of random candidates.
const SEEDS: usize = 1_000_000_000;
/// Runs kept for each branch.
const KEPT: usize = 16;
/// Milliseconds after the branch within which the new choices begin.
const AFTER_MS: usize = 3_000;
/// Largest number of new choices within one script.
const TURNS_MAX: usize = 4;
/// Percentage of continuations with new faults.
const OTHER_FAULTS: usize = 60;

/// Origin of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub seed: u64,
    /// All faults; `None`: derived from the seed.
    pub script: Option<Script>,
}

/// Kept runs, and the number of runs that took each branch.
pub struct Corpus {
    rng: Rng,
    seconds: u64,
    scenario: Scenario,
    runs: Vec<Kept>,
    /// Number of runs that took the branch, by the branch's number.
    taken: Vec<usize>,
    /// Number of runs from fresh seeds.
    drawn: usize,
    /// Number of fresh runs with both traits.
    pairs: BTreeMap<(Trait, Trait), usize>,
}

struct Kept {
    origin: Origin,
    script: Script,
    rare_since: Vec<(Rare, Nanos)>,
}

impl Corpus {
    /// Creates a corpus for runs of this length and scenario; `seed` determines the choices of continuations.
    pub fn new(seed: u64, seconds: u64, scenario: Scenario) -> Corpus {
        let (runs, taken) = (Vec::new(), vec![0; Rare::ALL.len()]);
        Corpus { rng: Rng::new(seed), seconds, scenario, runs, taken, drawn: 0, pairs: BTreeMap::new() }
    }

    /// Returns the next run: a fresh seed, or a continuation of a kept run.
    pub fn next(&mut self, fresh: u64) -> Origin {
        let origin = if self.drawn < BEFORE_KEPT || self.rng.chance(FRESH) { None } else { self.go_on() };
        origin.unwrap_or_else(|| Origin { seed: self.draw(fresh), script: None })
    }

    /// Returns the seed with the most rarely seen pairs of traits, of `fresh` and random candidates.
    fn draw(&mut self, fresh: u64) -> u64 {
        let had = |pair| self.pairs.get(&pair).copied().unwrap_or_default();
        let candidates = (1..CANDIDATES).map(|_| self.rng.below(SEEDS) as u64).chain([fresh]).map(|seed| {
            let traits = traits_of(seed, self.seconds, self.scenario);
            let worth = pairs_of(&traits).map(|pair| 1.0 / (1 + had(pair)) as f64).sum::<f64>();
            (worth, seed, traits)
        });
        let best = candidates.max_by(|(one, ..), (other, ..)| one.total_cmp(other));
        let (_, seed, traits) = best.expect("the fresh seed is among them");
        for pair in pairs_of(&traits) {
            *self.pairs.entry(pair).or_default() += 1;
        }
        self.drawn += 1;
        seed
    }

    /// Adds a run. Returns whether the run is kept, because it took a branch that few runs have taken.
    pub fn add(&mut self, origin: &Origin, outcome: &Outcome) -> bool {
        let mut is_rare = false;
        for (branch, _) in &outcome.rare_since {
            let taken = &mut self.taken[*branch as usize];
            *taken += 1;
            is_rare |= *taken <= KEPT;
        }
        let turns =
            outcome.script.steps().iter().filter(|step| step.fault.kind() == Kind::NewChoices).count();
        let is_kept = is_rare && turns < TURNS_MAX && outcome.violation.is_none();
        if is_kept {
            let (script, rare_since) = (outcome.script.clone(), outcome.rare_since.clone());
            self.runs.push(Kept { origin: origin.clone(), script, rare_since });
        }
        is_kept
    }

    /// Returns a continuation from a branch (the rarer, the likelier) of a run that took the branch.
    fn go_on(&mut self) -> Option<Origin> {
        let load_ends = Nanos::from_millis(self.seconds * 1_000);
        let in_time = |since: Nanos| since < load_ends;
        let known: Vec<(usize, Rare)> = Rare::ALL
            .iter()
            .filter(|branch| self.runs.iter().any(|run| run.took(**branch).is_some_and(in_time)))
            .map(|branch| (1 + 10_000 / self.taken[*branch as usize].max(1), *branch))
            .collect();
        if known.is_empty() {
            return None;
        }
        let branch = self.rng.pick_weighted(&known);
        let runs: Vec<usize> =
            (0..self.runs.len()).filter(|run| self.runs[*run].took(branch).is_some_and(in_time)).collect();
        let run = &self.runs[self.rng.pick(&runs)];
        let since = run.took(branch).expect("chosen among those that took it");
        let at = Nanos(since.0 + self.rng.below(AFTER_MS) as u64 * 1_000_000).min(load_ends);
        let (seed, others) = (self.rng.u64(), self.rng.chance(OTHER_FAULTS));
        let script = self.turned(run, at, seed, others);
        Some(Origin { seed: run.origin.seed, script: Some(script) })
    }

    /// Returns the faults of the run up to `at`, then new choices, and the run's own faults or new faults.
    fn turned(&self, run: &Kept, at: Nanos, seed: u64, others: bool) -> Script {
        let (before, own): (Vec<Step>, Vec<Step>) =
            run.script.steps().iter().cloned().partition(|step| step.at <= at);
        let shape = Shape::of_run(run.origin.seed, self.scenario);
        let other = self.scenario.script(seed, self.seconds, &shape, CLIENTS);
        let free = before.iter().filter_map(Step::ends).max().unwrap_or(at).max(at);
        let (skipped, other): (Vec<Step>, Vec<Step>) =
            other.steps().iter().cloned().partition(|step| step.at <= free);
        // The faults that a script may contain depend on its earlier faults.
        let after = if others && before.iter().chain(&skipped).all(passes) { other } else { own };
        let turn = Step { at, fault: Fault::NewChoices { seed } };
        let steps = before.into_iter().chain([turn]).chain(after).collect();
        Script::new(steps).with_over_budget(run.script.is_over_budget())
    }
}

/// Returns each pair of traits once.
fn pairs_of(traits: &BTreeSet<Trait>) -> impl Iterator<Item = (Trait, Trait)> {
    let after = |one: &Trait| (Bound::Excluded(*one), Bound::Unbounded);
    traits.iter().flat_map(move |one| traits.range(after(one)).map(move |other| (*one, *other)))
}

impl Kept {
    fn took(&self, branch: Rare) -> Option<Nanos> {
        self.rare_since.iter().find(|(taken, _)| *taken == branch).map(|(_, since)| *since)
    }
}

/// Returns whether the cluster has the same members and disks after the step as before.
fn passes(step: &Step) -> bool {
    let is_of_links_or_time = matches!(
        step.fault.kind(),
        Kind::Partition
            | Kind::OneWay
            | Kind::Bridge
            | Kind::Isolate
            | Kind::Clog
            | Kind::Lose
            | Kind::Distrust
            | Kind::Reset
            | Kind::Kill
            | Kind::PowerLoss
            | Kind::Pause
            | Kind::ClockRate
            | Kind::ClockJump
            | Kind::SlowDisk
            | Kind::DiskFull
            | Kind::Transfer
            | Kind::Regain
            | Kind::Depose
            | Kind::FallBehind
            | Kind::DieWaiting
            | Kind::Disconnect
            | Kind::EndRuntime
            | Kind::ReturnFromMain
            | Kind::Flood
            | Kind::SlowProcessor
            | Kind::NewChoices
    );
    is_of_links_or_time && step.ends().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Plan, run};

    const SECONDS: u64 = 8;

    fn outcome_of(origin: &Origin, scenario: Scenario) -> Outcome {
        let script = origin.script.clone();
        run(&Plan { seed: origin.seed, seconds: SECONDS, scenario, script, mutant: None, record: true })
    }

    #[test]
    fn a_continuation_equals_its_origin_up_to_the_new_choices() {
        let scenario = Scenario::All;
        let origin = Origin { seed: 3, script: None };
        let first = outcome_of(&origin, scenario);
        let mut corpus = Corpus::new(1, SECONDS, scenario);
        assert!(corpus.add(&origin, &first), "everything is rare at first");
        let other = corpus.go_on().expect("it took rare branches");
        let steps = other.script.as_ref().map(|script| script.steps().to_vec()).unwrap_or_default();
        let turn = steps.iter().find(|step| step.fault.kind() == Kind::NewChoices).expect("it turns").at;
        let second = outcome_of(&other, scenario);
        let until = |outcome: &Outcome| {
            let before = outcome.record.iter().take_while(|happening| happening.at < turn);
            before.map(|happening| format!("{happening:?}")).collect::<Vec<_>>()
        };
        assert!(!until(&first).is_empty());
        assert_eq!(until(&first), until(&second));
        assert_ne!(first.fingerprint, second.fingerprint);
        assert_eq!(second.fingerprint, outcome_of(&other, scenario).fingerprint);
        assert_eq!(first.violation, None);
        assert_eq!(second.violation, None);
    }

    #[test]
    fn chosen_seeds_have_more_pairs_of_traits_and_are_repeatable() {
        let scenario = Scenario::All;
        let met = |seeds: &[u64]| {
            let of = |seed: &u64| pairs_of(&traits_of(*seed, SECONDS, scenario)).collect::<Vec<_>>();
            seeds.iter().flat_map(of).collect::<BTreeSet<_>>().len()
        };
        let chosen = || {
            let mut corpus = Corpus::new(1, SECONDS, scenario);
            (0..10).map(|fresh| corpus.draw(fresh)).collect::<Vec<u64>>()
        };
        let (seeds, any) = (chosen(), Vec::from_iter(0..10));
        assert_eq!(seeds, chosen());
        assert!(met(&seeds) * 5 > met(&any) * 6, "{} {}", met(&seeds), met(&any));
    }

    #[test]
    fn only_the_first_runs_of_a_branch_are_kept() {
        let scenario = Scenario::Calm;
        let origin = Origin { seed: 1, script: None };
        let outcome = outcome_of(&origin, scenario);
        let mut corpus = Corpus::new(1, SECONDS, scenario);
        assert_eq!(corpus.next(7).script, None, "nothing is kept");
        let kept = (0..2 * KEPT).filter(|_| corpus.add(&origin, &outcome)).count();
        assert_eq!((kept, corpus.runs.len()), (KEPT, KEPT));
    }
}
