//! Predictions of the literature about each design (`testdata/predictions.txt`), and the determinism of runs.

use std::collections::BTreeMap;

use rowlock_designs::condition::Condition;
use rowlock_designs::design::Design;
use rowlock_designs::scenario::Scenario;
use rowlock_designs::table::{Cell, compare};
use rowlock_designs::{recipes, stage};

/// Comparison of each figure of a design in a scenario.
type Predictions = BTreeMap<(String, Scenario), BTreeMap<String, String>>;

fn predictions() -> Predictions {
    let designs = recipes::all();
    let mut predictions = Predictions::new();
    let text = include_str!("../testdata/predictions.txt").lines();
    for line in text.filter(|line| !line.is_empty() && !line.starts_with("--")) {
        let (of, figures) = line.split_once(": ").unwrap_or_else(|| panic!("no figures in {line:?}"));
        let (ids, scenario) = of.rsplit_once(' ').unwrap_or_else(|| panic!("no scenario in {line:?}"));
        let named: Vec<&str> = ids.split(", ").collect();
        let chosen: Vec<_> =
            designs.iter().filter(|design| ids == "*" || named.contains(&design.id())).collect();
        assert!(ids == "*" || chosen.len() == named.len(), "an unknown design in {line:?}");
        let scenarios = Scenario::ALL.into_iter().filter(|known| scenario == "*" || known.id() == scenario);
        let scenarios: Vec<Scenario> = scenarios.collect();
        assert!(!scenarios.is_empty(), "an unknown scenario in {line:?}");
        for (design, scenario) in chosen.iter().flat_map(|design| scenarios.iter().map(move |s| (design, *s)))
        {
            if design.not_applicable(scenario).is_some() {
                assert!(scenarios.len() > 1, "{line:?} is about a scenario that does not apply");
                continue;
            }
            let all = predictions.entry((design.id().to_owned(), scenario)).or_default();
            for figure in figures.split(", ") {
                let name = figure.split(' ').next().unwrap_or_default();
                all.insert(name.to_owned(), figure.to_owned());
            }
        }
    }
    predictions
}

/// Runs the designs whose ids `is_of` accepts, and returns the predictions that fail.
fn wrong_predictions(is_of: impl Fn(&str) -> bool) -> Vec<String> {
    let designs = recipes::all();
    let mut wrong = Vec::new();
    for ((id, scenario), figures) in predictions().into_iter().filter(|((id, _), _)| is_of(id)) {
        let design: &dyn Design = &**designs.iter().find(|design| design.id() == id).expect("is known");
        let table = compare(&[design], &[scenario], 1, |_| {});
        let Cell::Measured(summary) = &table.rows[0].cells[0].1 else {
            panic!("{id} in {}: {:?}", scenario.id(), table.rows[0].cells[0].1)
        };
        let is_calm = matches!(scenario, Scenario::Calm | Scenario::TwoClients | Scenario::HundredWaiters);
        assert_eq!(
            summary.faults,
            u64::from(!is_calm),
            "{id}: the fault of {} has no occasion",
            scenario.id()
        );
        for figure in figures.into_values() {
            let condition = Condition::parse(&figure).unwrap_or_else(|error| panic!("{figure}: {error}"));
            let holds = condition.holds(|_| Some(vec![&**summary]));
            let holds = holds.unwrap_or_else(|| panic!("{figure:?} names an unknown figure"));
            if !holds {
                wrong.push(format!("{id} in {}: not {figure}: {summary:?}", scenario.id()));
            }
        }
    }
    wrong
}

/// Ids of the designs on Redis begin with one of these.
const REDIS: [&str; 3] = ["set", "client", "redlock"];

#[test]
fn the_predictions_about_redis_hold() {
    let wrong = wrong_predictions(|id| REDIS.iter().any(|prefix| id.starts_with(prefix)));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_predictions_about_redisson_hold() {
    let wrong = wrong_predictions(|id| id.starts_with("redisson"));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_predictions_about_databases_and_zookeeper_hold() {
    let wrong = wrong_predictions(|id| {
        !id.starts_with("redisson") && REDIS.iter().all(|prefix| !id.starts_with(prefix))
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let designs = recipes::all();
    for design in designs.iter().filter(|d| ["redisson-replicas", "zk-queue"].contains(&d.id())) {
        let run = |seed| stage::run(&**design, Scenario::PrimaryLost, seed, false).expect("no halt");
        let (one, again, other) = (run(1), run(1), run(2));
        assert_eq!((one.fingerprint, &one.measured), (again.fingerprint, &again.measured));
        assert_ne!(one.fingerprint, other.fingerprint);
    }
}
