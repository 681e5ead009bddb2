//! Compares this crate's designs and prints the table: `cargo run --release -p rowlock-designs --example
//! compare -- [--seeds N] [--text | --markdown | --html]`, or prints one run: `-- --design ID --scenario ID
//! --seed N`.

use rowlock_designs::design::Design;
use rowlock_designs::scenario::Scenario;
use rowlock_designs::table::compare;
use rowlock_designs::{recipes, stage};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let number = |name: &str| value(name).and_then(|number| number.parse().ok());
    let designs = recipes::all();
    let chosen = value("--design");
    let designs: Vec<&dyn Design> =
        designs.iter().map(|d| &**d).filter(|d| chosen.is_none_or(|id| id == d.id())).collect();
    let scenario = value("--scenario").and_then(|id| Scenario::from_id(id));
    if let (Some(scenario), Some(seed), [design]) = (scenario, number("--seed"), &designs[..]) {
        match stage::run(*design, scenario, seed, true) {
            Ok(outcome) => {
                outcome.record.iter().for_each(|happening| println!("{} {:?}", happening.at, happening.what));
                println!("{:#?}\n{:#?}", outcome.measured, outcome.losses);
            }
            Err(halt) => println!("{halt}"),
        }
        return;
    }
    let scenarios = scenario.map_or(Scenario::ALL.to_vec(), |scenario| vec![scenario]);
    let table = compare(&designs, &scenarios, number("--seeds").unwrap_or(5), |_| {});
    let report = match (has("--markdown"), has("--html")) {
        (true, _) => table.to_markdown(),
        (_, true) => table.to_html(),
        _ => table.to_text(),
    };
    println!("{report}");
}
