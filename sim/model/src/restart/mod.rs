//! Interleavings of three nodes that acknowledge grants before the flush, and of the clients that hold the
//! lock in turn (`docs/decisions/memory-locks.md`). The mode is not built: the model is its design.
//!
//! A node keeps its log in the page cache and a beginning of the log on its disk. A loss of power takes any
//! part of the rest. A kill takes nothing, so a killed node is a node without steps. Terms and votes are
//! flushed. A node knows of its loss until a leader admits the node.
//!
//! A client believes in the lock from the first moment at which a leader can commit the grant, until
//! [`state::TIMEOUT`] ticks after the last confirmation of the session: no client believes sooner or for
//! longer. Commits are no steps of their own, since a later commit, or none, promises less. The first grant
//! after a restart stands for the end of the grace. A holder's session does not expire: `space` explores the
//! expiry.
//!
//! Bounds: three terms and two losses of power, with two grants and the clients' steps, or with one grant and
//! a write of a znode, or with one grant and a third node that joins the voters. A follower accepts a request
//! at the moment of sending, with all entries, or not at all. A candidate gets its votes at once. Any two
//! voters may elect, even if the third is up. All else happens at any time, or never. Nodes differ by their
//! state only, so the states are sorted.

pub mod log;
pub mod mistake;
mod properties;
pub mod state;
pub mod step;
mod trace;

use stateright::{Model, Property};

use self::mistake::{Mistake, Promise};
use self::state::{Node, Rules, State};
use self::step::Step;

/// Model, with an optional mistake.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    rules: Rules,
}

impl Restarts {
    /// Returns a model with clients and two grants.
    pub fn of_locks() -> Self {
        let rules = Rules {
            mistake: None,
            losses: 2,
            grants: 2,
            has_clients: true,
            writes: false,
            changes_voters: false,
        };
        Restarts { rules }
    }

    /// Returns a model with a grant and a write of a znode.
    pub fn of_znodes() -> Self {
        let Restarts { rules } = Restarts::of_locks();
        Restarts { rules: Rules { grants: 1, has_clients: false, writes: true, ..rules } }
    }

    /// Returns a model with a grant, and a third node that joins the voters.
    pub fn of_voters() -> Self {
        let Restarts { rules } = Restarts::of_znodes();
        Restarts { rules: Rules { writes: false, changes_voters: true, ..rules } }
    }

    /// Returns a model with a mistake, and as few events as its counterexample needs.
    pub fn with(mistake: Mistake) -> Self {
        let Restarts { rules } = match mistake.breaks() {
            Promise::ZnodesStay => Restarts::of_znodes(),
            _ => Restarts::of_locks(),
        };
        let losses = if mistake == Mistake::RestartNotFlushed { 2 } else { 1 };
        let grants = if mistake == Mistake::UnboundedUnflushed { 3 } else { rules.grants };
        Restarts { rules: Rules { mistake: Some(mistake), losses, grants, ..rules } }
    }

    fn initial(&self) -> State {
        let mut nodes = [Node { term: 1, flushed_term: 1, ..Node::default() }; 3];
        nodes[0].leads = Some(0);
        nodes[2].is_third = self.rules.changes_voters;
        let (committed, holder) = Default::default();
        sorted(State { nodes, committed, holder, token: 0, losses: 0, grants: 0, broken: None }).0
    }
}

/// Sorts the nodes, and returns their former places.
fn sorted(mut state: State) -> (State, [usize; 3]) {
    let mut order = [0, 1, 2];
    order.sort_by_key(|place| state.nodes[*place]);
    state.nodes = order.map(|place| state.nodes[place]);
    (state, order)
}

/// Reports whether two voters may be unable to grant the lock, although they run and reach each other.
fn may_stop(space: &Restarts, state: &State) -> bool {
    let rules = space.rules;
    if rules.mistake.is_some_and(|mistake| mistake.breaks() != Promise::Progress) {
        return false;
    }
    let is_voter = |place: &usize| !rules.changes_voters || !state.nodes[*place].is_third;
    let pairs = [[0, 1], [0, 2], [1, 2]];
    let mut pairs = pairs.into_iter().filter(|pair| pair.iter().all(is_voter));
    pairs.any(|pair| !rules.recovers(state, pair))
}

impl Model for Restarts {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_none() {
            self.rules.allowed(state, steps);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        Some(sorted(self.rules.after(before, step)).0)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self.rules)
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker as _;

    use super::*;
    use crate::search;

    fn assert_explored(model: Restarts, states: usize) {
        let explored = search::explored(model);
        explored.assert_properties();
        assert!(explored.is_done());
        assert_eq!(explored.unique_state_count(), states);
    }

    #[test]
    fn restarts_keep_the_promises_to_holders() {
        assert_explored(Restarts::of_locks(), 299_371);
    }

    #[test]
    fn restarts_lose_no_znodes() {
        assert_explored(Restarts::of_znodes(), 242_403);
    }

    #[test]
    fn restarts_keep_the_voters() {
        assert_explored(Restarts::of_voters(), 453_031);
    }

    #[test]
    fn each_mistake_in_a_restart_breaks_its_promise() {
        for mistake in Mistake::ALL {
            let model = Restarts::with(*mistake);
            let Some((promise, steps)) = search::broken(model) else { panic!("{mistake}: not noticed") };
            println!("{mistake} \"{promise}\" is broken:\n{}\n", model.trace(&steps).join("\n"));
            assert_eq!(promise, mistake.breaks().name(), "{mistake}");
        }
    }
}
