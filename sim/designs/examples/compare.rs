//! Runs the comparison of this crate's designs and prints it: `cargo run --release -p rowlock-designs --example compare`.

use rowlock_designs::scenario::Scenario;
use rowlock_designs::table::{Cell, compare};
use rowlock_designs::{design::Design, recipes};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let seeds = args.get(1).and_then(|s| s.parse().ok()).unwrap_or(3);
    let only = args.get(2).cloned().unwrap_or_default();
    let designs = recipes::all();
    let designs: Vec<&dyn Design> = designs.iter().map(|d| &**d).filter(|d| d.id().contains(&only)).collect();
    let table = compare(&designs, &Scenario::ALL, seeds, |_| {});
    for row in &table.rows {
        println!("== {}", row.id);
        for (s, cell) in &row.cells {
            match cell {
                Cell::NotApplicable(why) => println!("  {:16} n/a {why}", s.id()),
                Cell::Halted { seed, why } => println!("  {:16} HALT {seed} {why}", s.id()),
                Cell::Measured(m) => println!("  {:16} f{} g{:5} w{:4} {:7}ms lost {:3}/{:3} ref {} stuck {} over {:4} p50 {:5} p99 {:6} m/r {:7.1} den {:6.1} rec {:?} unav {} told {} false {} renref {}", s.id(), m.faults, m.grants, m.windows, m.overlap.as_millis(), m.lost_plain, m.lost_fenced, m.refused, m.stuck, m.overtakes, m.wait_p50.as_millis(), m.wait_p99.as_millis(), m.messages_per_release(), m.wasted_per_release(), m.recovery.map(|r| r.as_millis()), m.unavailable.as_millis(), m.told, m.false_releases, m.renewals_refused),
            }
        }
    }
}
