//! Exhaustive search of a model, breadth first.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Model that a search can explore.
pub trait Searchable:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
        Action: Clone + Debug + PartialEq + Send + Sync + 'static,
    > + Send
    + Sync
    + 'static
{
}

impl<M> Searchable for M where
    M: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
            Action: Clone + Debug + PartialEq + Send + Sync + 'static,
        > + Send
        + Sync
        + 'static
{
}

/// Visits all states of the model.
pub fn explored<M: Searchable>(model: M) -> impl Checker<M> {
    model.checker().spawn_bfs().join()
}

/// Returns a violated property, and the fewest steps to a violation.
pub fn broken<M: Searchable + Clone>(model: M) -> Option<(&'static str, Vec<M::Action>)> {
    let mut shortest: Option<(&str, Vec<M::Action>)> = None;
    loop {
        let mut search = model.clone().checker().finish_when(HasDiscoveries::AnyFailures);
        if let Some((_, steps)) = &shortest {
            // The checker reports the last violation of a block of states: look for fewer steps.
            search = search.target_max_depth(steps.len() + 1);
        }
        let found = search.spawn_bfs().join();
        let mut always: Vec<_> = found.discoveries().into_iter().collect();
        always.retain(|(name, _)| found.discovery_classification(name).to_string() == "counterexample");
        let steps = always.into_iter().map(|(name, path)| (name, path.into_actions()));
        match steps.min_by_key(|(name, steps)| (steps.len(), *name)) {
            Some(found) => shortest = Some(found),
            None => return shortest,
        }
    }
}
