//! Rounds of an election between the two voters that are left of three, in ticks: each needs the other's
//! vote, and their disks flush at different speeds.
//!
//! Messages take no time. No two nodes stand in one tick: the random pauses of candidates are left out. Else
//! a node may stand at any tick at which the code lets it, or at a later one.

use rowlock_env::mutant::Mutant;
use stateright::{Model, Property};

/// Ticks of the shortest round (`election_timeout_min_ms`).
const LEAST: u8 = 2;
/// Factor of a flush in the patience of a node (`FLUSHES_OF_AN_ELECTION`).
const FLUSHES: u8 = 4;
/// Ticks of a flush on each disk: fast, as slow as half a round, slower than two rounds.
const DISKS: [u8; 3] = [0, 1, 6];
/// Terms that an election needs at most: rounds of 2, 4 and 8 ticks, and the last one outlasts the slowest
/// flush.
pub const TERMS: u8 = 3;
const IN_TIME: &str = "an election needs at most three terms";

/// Mistake of `core/env/src/mutant.rs` that the model can make.
pub const MISTAKE: Mutant = Mutant::ElectionsDoNotWait;

/// Model, with an optional mistake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rounds {
    mistake: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase {
    Follows,
    /// The flush of the node's own vote lasts these ticks.
    FlushesOwn(u8),
    /// The requests have left; the round lasts these ticks.
    Waits(u8),
    /// The flush of the vote for the other node lasts these ticks.
    FlushesVote(u8),
    Leads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    /// Ticks of a flush.
    disk: u8,
    phase: Phase,
    /// Rounds without a leader.
    round: u8,
    /// Ticks that are left to the candidate that has the node's vote.
    leaves: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; 2],
    /// Terms that have begun.
    terms: u8,
}

impl State {
    fn is_led(&self) -> bool {
        self.nodes.iter().any(|node| node.phase == Phase::Leads)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Tick,
    Stand(usize),
}

impl Rounds {
    pub fn with(mistake: Mutant) -> Self {
        Rounds { mistake: Some(mistake) }
    }

    /// Returns `least`, or longer behind a slow disk.
    fn patience(&self, least: u8, disk: u8) -> u8 {
        if self.mistake == Some(Mutant::ElectionsDoNotWait) { 1 } else { least.max(FLUSHES * disk) }
    }

    /// Moves a node on whose flush has ended.
    fn flushed(&self, state: &mut State, place: usize) {
        let Node { disk, round, phase, .. } = state.nodes[place];
        match phase {
            Phase::FlushesOwn(0) => {
                state.nodes[place].phase = Phase::Waits(self.patience(LEAST << round, disk));
                let other = &mut state.nodes[1 - place];
                if other.phase == Phase::Follows {
                    other.phase = Phase::FlushesVote(other.disk);
                    self.flushed(state, 1 - place);
                }
            }
            Phase::FlushesVote(0) => {
                (state.nodes[place].phase, state.nodes[place].leaves) =
                    (Phase::Follows, self.patience(LEAST, disk));
                let candidate = &mut state.nodes[1 - place];
                if matches!(candidate.phase, Phase::Waits(_)) {
                    candidate.phase = Phase::Leads;
                }
            }
            _ => {}
        }
    }

    fn tick(&self, state: &mut State) {
        for node in &mut state.nodes {
            node.leaves = node.leaves.saturating_sub(1);
            match &mut node.phase {
                Phase::FlushesOwn(left) | Phase::FlushesVote(left) => *left -= 1,
                Phase::Waits(0) => (node.phase, node.round) = (Phase::Follows, node.round + 1),
                Phase::Waits(left) => *left -= 1,
                Phase::Follows | Phase::Leads => {}
            }
        }
        (0..2).for_each(|place| self.flushed(state, place));
    }
}

impl Model for Rounds {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let node = |disk| Node { disk, phase: Phase::Follows, round: 0, leaves: 0 };
        let pairs = DISKS.into_iter().flat_map(|one| DISKS.map(|other| [node(one), node(other)]));
        pairs.map(|nodes| State { nodes, terms: 0 }).collect()
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.terms > TERMS || state.is_led() {
            return;
        }
        steps.push(Step::Tick);
        // A node stands when no other candidacy has its time, and the other node promises its vote.
        if state.nodes.iter().all(|node| node.phase == Phase::Follows && node.leaves == 0) {
            steps.extend([Step::Stand(0), Step::Stand(1)]);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = *before;
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Stand(place) => {
                state.terms += 1;
                state.nodes[place].phase = Phase::FlushesOwn(state.nodes[place].disk);
                self.flushed(&mut state, place);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        type P = Property<Rounds>;
        vec![
            P::always(IN_TIME, |_, it| it.terms <= TERMS),
            P::sometimes("the first term elects a leader behind two slow disks", |_, it| {
                it.is_led() && it.terms == 1 && it.nodes.iter().all(|node| node.disk == DISKS[2])
            }),
            P::sometimes("the last term elects a leader", |_, it| it.is_led() && it.terms == TERMS),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker as _;

    use super::*;
    use crate::search;

    #[test]
    fn elections_behind_slow_flushes_end_within_three_terms() {
        let explored = search::explored(Rounds::default());
        explored.assert_properties();
        assert!(explored.is_done() && explored.unique_state_count() > 100, "the space has shrunk");
    }

    #[test]
    fn rounds_that_do_not_wait_for_flushes_elect_no_leader() {
        let broken = search::broken(Rounds::with(MISTAKE));
        assert_eq!(broken.map(|(rule, _)| rule), Some(IN_TIME));
    }
}
