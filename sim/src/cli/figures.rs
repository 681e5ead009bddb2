//! Figures of many runs, and their text form.

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_env::choice::Choice;
use rowlock_env::guard::{self, Guard, Outcomes};
use rowlock_env::rare::{self, Counts, Rare};
use rowlock_model::rules::Event;
use rowlock_sim::cluster::{Outcome, Stats};
use rowlock_sim::fault::Kind;
use rowlock_sim::invariants::{Debt, Lateness, ModelEvents};

use super::case::Case;

const NOT_COUNTED: &str = "not counted where assertions are off; build with --profile sim";

/// Totals of many runs.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub stats: Stats,
    /// Runs that broke a promise, with the violation.
    pub broken: Vec<(Case, String)>,
    /// Sum over all fingerprints, independent of their order.
    pub fingerprint: u64,
}

impl Figures {
    /// Adds the outcome of a seed, or of the case that replaced the seed.
    pub fn add(&mut self, seed: u64, case: &Case, outcome: &Outcome) {
        self.stats += &outcome.stats;
        // Odd factors differ from seed to seed, so that an exchange of two outcomes changes the sum.
        let factor = seed.wrapping_mul(2).wrapping_add(1);
        self.fingerprint = self.fingerprint.wrapping_add(outcome.fingerprint.wrapping_mul(factor));
        if let Some(violation) = &outcome.violation {
            self.broken.push((case.clone(), violation.to_string()));
        }
    }

    pub fn runs(&self) -> u64 {
        self.stats.runs
    }

    pub fn hours(&self) -> f64 {
        self.stats.simulated.0 as f64 / 3.6e12
    }

    /// Returns one line of progress.
    pub fn progress(&self, took: Duration, wanted: Option<u64>) -> String {
        let of = wanted.map(|n| format!(" of {}", counted(n))).unwrap_or_default();
        let rate = self.runs() as f64 / took.as_secs_f64().max(0.001);
        let mut line =
            format!("{}{of} seeds  {rate:.1}/s  {:.1} h simulated", counted(self.runs()), self.hours());
        if !self.broken.is_empty() {
            line.push_str(&format!("  {} broken", self.broken.len()));
        }
        line
    }

    /// Returns the complete table.
    pub fn summary(&self, took: Duration, threads: usize) -> String {
        let seconds = took.as_secs_f64().max(0.001);
        let simulated = self.stats.simulated.0 as f64 / 1e9;
        let mut rows = vec![
            (
                "runs",
                format!(
                    "{} in {seconds:.1} s, {:.1} a second on {threads} threads",
                    counted(self.runs()),
                    self.runs() as f64 / seconds
                ),
            ),
            ("locks granted", counted(self.stats.grants)),
        ];
        if simulated > 0.0 {
            let speed = simulated / seconds;
            rows.push(("simulated", format!("{:.2} h, {speed:.0} simulated seconds a second", self.hours())));
            rows.push(("calls answered", counted(self.stats.acknowledged)));
            rows.push(("faults", faults(&self.stats.faults)));
            rows.extend(late_rows(&self.stats.lateness));
            rows.extend(model_rows(&self.stats.model_events));
            let (rare, choices) = (branches(&self.stats.rare), choices(&self.stats.rare));
            rows.push(("rare branches", if rare::COUNTED { taken(&rare) } else { NOT_COUNTED.to_owned() }));
            rows.push(("never taken", never_taken(&rare)));
            rows.push(("choices", taken(&choices)));
            rows.push(("never chosen", never_taken(&choices)));
            rows.extend(guard_rows(&self.stats.guards));
        }
        rows.push(("fingerprint", format!("{:016x}", self.fingerprint)));
        rows.push(("broken", counted(self.broken.len() as u64)));
        rows.iter().map(|(name, value)| format!("{name:>16}  {value}\n")).collect()
    }
}

pub fn counted(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats as `27: kill 12, partition 15`.
pub fn faults(by_kind: &BTreeMap<Kind, u64>) -> String {
    let total: u64 = by_kind.values().sum();
    if total == 0 {
        return "none".to_owned();
    }
    let kinds: Vec<String> =
        by_kind.iter().map(|(kind, n)| format!("{} {}", kind.name(), counted(*n))).collect();
    format!("{}: {}", counted(total), kinds.join(", "))
}

/// Lateness of runs without mistakes, as kept by `swarm --keep-lateness`.
const KEPT: &str = include_str!("lateness.txt");

/// Formats each kind of debt as `call 1,234: 0 20 310`: number, and p50, p99 and worst in milliseconds.
pub fn lateness(all: &Lateness) -> String {
    let line = |debt: Debt| {
        let it = all.of(debt);
        let [half, most] = [50, 99].map(|percent| it.percentile(percent).as_millis());
        format!("{} {}: {half} {most} {}\n", debt.name(), counted(it.count()), it.worst().as_millis())
    };
    Debt::all().map(line).collect()
}

/// Returns a row for each kind of debt, beside the kept figures.
fn late_rows(all: &Lateness) -> Vec<(&'static str, String)> {
    let row = |(debt, line): (Debt, &str)| {
        let of = |line: &str| line.split_once(' ').map_or(String::new(), |(_, rest)| rest.to_owned());
        let kept = KEPT.lines().find(|line| line.split(' ').next() == Some(debt.name())).map(of);
        let (now, kept, bound) = (of(line), kept.unwrap_or_default(), debt.bound().as_millis());
        (debt.name(), format!("{now} ms late; kept {kept}; at most {bound}"))
    };
    Debt::all().zip(lateness(all).lines()).map(row).collect()
}

/// Returns how often the rules of the model judged each kind of event.
pub fn model_rows(counts: &ModelEvents) -> [(&'static str, String); 2] {
    let events: Vec<Named> = Event::KINDS.into_iter().zip(*counts).collect();
    [("model's events", taken(&events)), ("never judged", never_taken(&events))]
}

/// A name with its count.
type Named = (&'static str, u64);

fn branches(counts: &Counts) -> Vec<Named> {
    Rare::ALL.iter().map(|branch| (branch.name(), counts.of(*branch))).collect()
}

fn choices(counts: &Counts) -> Vec<Named> {
    Choice::ALL.iter().map(|choice| (choice.name(), counts.of_choice(*choice))).collect()
}

/// Formats as `2 of 54: torn-tail 3, session-moved 1`.
fn taken(all: &[Named]) -> String {
    let taken = all.iter().filter(|(_, times)| *times > 0);
    let taken: Vec<String> = taken.map(|(name, times)| format!("{name} {}", counted(*times))).collect();
    format!("{} of {}: {}", taken.len(), all.len(), taken.join(", "))
}

/// Returns the names with a count of zero.
fn never_taken(all: &[Named]) -> String {
    let never: Vec<&str> = all.iter().filter(|(_, times)| *times == 0).map(|(name, _)| *name).collect();
    listed(&never)
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns how many guards went both ways, and the names of all remaining guards: these are out of reach.
pub fn guard_rows(outcomes: &Outcomes) -> Vec<(&'static str, String)> {
    if !guard::WATCHED {
        return vec![("guards", NOT_COUNTED.to_owned())];
    }
    let that = |is_meant: fn([u64; 2]) -> bool| -> Vec<&str> {
        Guard::all().filter(|guard| is_meant(outcomes.of(*guard))).map(Guard::name).collect()
    };
    let both_ways = that(|[no, yes]| no > 0 && yes > 0).len();
    vec![
        ("guards", format!("{both_ways} of {} went both ways", Guard::all().count())),
        ("always true", listed(&that(|[no, yes]| no == 0 && yes > 0))),
        ("always false", listed(&that(|[no, yes]| no > 0 && yes == 0))),
        ("not reached", listed(&that(|[no, yes]| no == 0 && yes == 0))),
    ]
}

/// Returns a bar of this width for a share of 0 to 1.
pub fn bar(done: f64, width: usize) -> String {
    let full = ((done.clamp(0.0, 1.0) * width as f64) as usize).min(width);
    format!("[{}{}]", "█".repeat(full), "·".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(fingerprint: u64) -> Outcome {
        let mut stats = Stats { runs: 1, grants: 1_000, ..Stats::default() };
        stats.faults.insert(Kind::Kill, 2);
        Outcome {
            violation: None,
            stats,
            fingerprint,
            rare_since: Vec::new(),
            script: Default::default(),
            record: Vec::new(),
            end: Default::default(),
        }
    }

    #[test]
    fn figures_ignore_run_order_but_not_exchanged_fingerprints() {
        let sum = |runs: [(u64, u64); 2]| {
            let mut figures = Figures::default();
            for (seed, fingerprint) in runs {
                let scenario = Default::default();
                let case = Case { seed, seconds: 8, scenario, script: None, mistake: None };
                figures.add(seed, &case, &outcome(fingerprint));
            }
            figures
        };
        assert_eq!(sum([(1, 8), (2, 9)]).fingerprint, sum([(2, 9), (1, 8)]).fingerprint);
        assert_ne!(sum([(1, 8), (2, 9)]).fingerprint, sum([(1, 9), (2, 8)]).fingerprint);
        assert_eq!(sum([(1, 8), (2, 9)]).stats.grants, 2_000);
    }

    #[test]
    fn faults_are_listed_with_their_total() {
        let by_kind = BTreeMap::from([(Kind::Partition, 1_500), (Kind::Kill, 2)]);
        assert_eq!(faults(&by_kind), "1,502: partition 1,500, kill 2");
        assert_eq!(faults(&BTreeMap::new()), "none");
    }

    #[test]
    fn taken_and_untaken_rare_branches_are_named() {
        let _ = Counts::take();
        (0..2).for_each(|_| rare::taken(Rare::TornTail));
        let counts = branches(&Counts::take());
        assert!(taken(&counts).starts_with("1 of ") && taken(&counts).ends_with(": torn-tail 2"));
        assert!(
            never_taken(&counts).contains("session-moved") && !never_taken(&counts).contains("torn-tail")
        );
    }

    #[test]
    fn kinds_of_events_that_no_run_had_are_named() {
        let mut counts = ModelEvents::default();
        counts[Event::Graced { session: 1 }.kind()] = 3;
        let [judged, never] = model_rows(&counts);
        assert_eq!(judged.1, "1 of 11: graced 3");
        assert!(never.1.starts_with("opened, ended, leads"), "{}", never.1);
    }

    #[test]
    fn guards_that_did_not_go_both_ways_are_named() {
        let rows = guard_rows(&Outcomes::default());
        let [guards, only_true, only_false, unreached] = &rows[..] else { panic!("{rows:?}") };
        assert!(guards.1.starts_with("0 of ") && (&*only_true.1, &*only_false.1) == ("none", "none"));
        assert_eq!(unreached.1.split(", ").count(), Guard::all().count());
    }

    #[test]
    fn bar_is_full_at_the_end_and_never_overflows() {
        assert_eq!(
            (bar(0.0, 4), bar(0.5, 4), bar(7.0, 4)),
            ("[····]".into(), "[██··]".into(), "[████]".into())
        );
    }
}
