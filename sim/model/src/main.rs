//! Explores the model, without and with each mistake, and prints the results.

use rowlock_env::time::Instant;
use rowlock_model::space::{MISTAKES, Space};
use stateright::{Checker as _, Model as _};

fn main() {
    let started = Instant::now();
    let explored = Space::default().explored();
    explored.assert_properties();
    println!(
        "{} states, {} transitions, depth {}, {:.1} s",
        explored.unique_state_count(),
        explored.state_count(),
        explored.max_depth(),
        started.elapsed().as_secs_f64()
    );
    for property in explored.model().properties() {
        println!("  {:?}: {}", property.expectation, property.name);
    }
    for mistake in MISTAKES {
        match Space::with(mistake).broken() {
            Some((rule, steps)) => println!("{mistake}: breaks \"{rule}\" after {steps} steps"),
            None => println!("{mistake}: not noticed"),
        }
    }
}
