//! Explores the models, without and with each mistake, and prints the results.

use std::fmt::Display;

use rowlock_env::time::Instant;
use rowlock_model::election::rounds::{self, Rounds};
use rowlock_model::election::votes::{self, Votes};
use rowlock_model::restart::Restarts;
use rowlock_model::restart::mistake::Mistake;
use rowlock_model::search::{self, Searchable};
use rowlock_model::space::{MISTAKES, Space};
use stateright::Checker as _;

fn main() {
    print_explored("sessions", Space::default());
    for mistake in MISTAKES {
        print_broken(mistake, Space::with(mistake));
    }
    print_explored("votes", Votes::default());
    for mistake in votes::MISTAKES {
        print_broken(mistake, Votes::with(mistake));
    }
    print_explored("rounds of elections", Rounds::default());
    print_broken(rounds::MISTAKE, Rounds::with(rounds::MISTAKE));
    print_explored("restarts, with clients", Restarts::of_locks());
    print_explored("restarts, with writes of znodes", Restarts::of_znodes());
    print_explored("restarts, with a change of voters", Restarts::of_voters());
    for mistake in Mistake::ALL {
        let model = Restarts::with(*mistake);
        let steps = print_broken(mistake, model).unwrap_or_default();
        for (number, line) in (1..).zip(model.trace(&steps)) {
            println!("  {number:2}. {line}");
        }
    }
}

fn print_explored(name: &str, model: impl Searchable) {
    let started = Instant::now();
    let explored = search::explored(model);
    println!(
        "{name}: {} states, {} transitions, depth {}, {:.1} s",
        explored.unique_state_count(),
        explored.state_count(),
        explored.max_depth(),
        started.elapsed().as_secs_f64()
    );
    explored.assert_properties();
    for property in explored.model().properties() {
        println!("  {:?}: {}", property.expectation, property.name);
    }
}

/// Returns the steps to the violation.
fn print_broken<M: Searchable + Clone>(mistake: impl Display, model: M) -> Option<Vec<M::Action>> {
    let Some((rule, steps)) = search::broken(model) else {
        println!("{mistake}: not noticed");
        return None;
    };
    println!("{mistake}: breaks \"{rule}\" after {} steps", steps.len());
    Some(steps)
}
