//! Interleavings of votes, flushes, losses of power and writes on three nodes.
//!
//! Votes have an order: a later term, or in one term a node with a higher number. Requests and answers stay
//! under way: a node receives each at any later moment, or never. A follower accepts an append at the moment
//! of sending, with the leader's whole log and on its disk, or not at all. Leases and timers are left out: no
//! promise depends on them, so any voter may vote and any node may stand at any time.
//!
//! Bounds: three terms, two entries in a log, one loss of power.

use rowlock_env::mutant::Mutant;
use stateright::{Model, Property};

/// Bound on the terms.
const TERMS: u8 = 3;
/// Bound on the entries of a log.
const ENTRIES: usize = 2;
const NODES: u8 = 3;
const COMPLETE: &str = "a leader has every entry that an earlier leader committed";

/// Mistakes of `core/env/src/mutant.rs` that the model can make.
pub const MISTAKES: [Mutant; 2] = [Mutant::VoteInMemory, Mutant::VoteForStaleLog];

/// Model, with an optional mistake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Votes {
    mistake: Option<Mutant>,
}

/// Term and candidate in one number, in the order of votes.
type Vote = u8;

fn vote_of(term: u8, node: u8) -> Vote {
    term * NODES + node
}

fn term_of(vote: Vote) -> u8 {
    vote / NODES
}

/// Entries, each with the vote of its leader; 0: no entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Log([Vote; ENTRIES]);

impl Log {
    fn len(self) -> usize {
        self.0.iter().filter(|entry| **entry > 0).count()
    }

    fn last(self) -> Vote {
        self.0.into_iter().max().unwrap_or_default()
    }

    /// Returns what a voter compares: the last entry's leader, then the length.
    fn end(self) -> (Vote, usize) {
        (self.last(), self.len())
    }
}

/// Committed entries, each with the leader that committed the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Committed([(Vote, Vote); ENTRIES]);

impl Committed {
    /// Returns whether the log of a leader has every entry that an earlier leader committed.
    fn is_kept(self, log: Log, leader: Vote) -> bool {
        let mut both = log.0.into_iter().zip(self.0);
        both.all(|(own, (entry, by))| by == 0 || by >= leader || own == entry)
    }

    fn commit(&mut self, log: Log, leader: Vote) {
        for (known, entry) in self.0.iter_mut().zip(log.0).filter(|(known, entry)| *entry > 0 && known.1 == 0)
        {
            *known = (entry, leader);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    vote: Vote,
    /// Vote on the disk.
    flushed: Vote,
    log: Log,
    stands: bool,
    leads: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES as usize],
    /// Log of the candidate, for each vote whose requests are under way.
    requests: [Option<Log>; ((TERMS + 1) * NODES) as usize],
    /// Bits of the voters, for each vote whose answers are under way.
    answers: [u8; ((TERMS + 1) * NODES) as usize],
    committed: Committed,
    has_lost_power: bool,
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The node begins the next term.
    Stand(u8),
    /// The node's vote is on its disk: the request or the answer leaves.
    Flush(u8),
    /// The node receives the request of this vote.
    Vote(u8, Vote),
    /// The candidate receives an answer.
    Win(u8),
    /// The leader appends an entry of its own.
    Write(u8),
    /// The second node accepts the first one's log.
    Append(u8, u8),
    /// The node loses power and starts again.
    LosePower(u8),
}

impl Votes {
    pub fn with(mistake: Mutant) -> Self {
        Votes { mistake: Some(mistake) }
    }

    fn makes(&self, mistake: Mutant) -> bool {
        self.mistake == Some(mistake)
    }

    /// Sends the request of the node's own vote, or its answer to another candidate.
    fn send(state: &mut State, node: u8) {
        let Node { vote, log, .. } = state.nodes[node as usize];
        if vote % NODES == node {
            state.requests[vote as usize] = Some(log);
        } else {
            state.answers[vote as usize] |= 1 << node;
        }
    }

    fn set_vote(&self, state: &mut State, node: u8, vote: Vote) {
        let it = &mut state.nodes[node as usize];
        (it.vote, it.stands, it.leads) = (vote, vote % NODES == node, false);
        if self.makes(Mutant::VoteInMemory) {
            Self::send(state, node);
        }
    }

    fn may_vote(&self, node: &Node, vote: Vote, log: Log) -> bool {
        vote > node.vote && (log.end() >= node.log.end() || self.makes(Mutant::VoteForStaleLog))
    }

    fn append(state: &mut State, leader: u8, follower: u8) {
        let Node { vote, log, .. } = state.nodes[leader as usize];
        state.nodes[follower as usize] = Node { vote, flushed: vote, log, stands: false, leads: false };
        // Two of three nodes have the entry. An entry of an earlier leader alone commits nothing.
        if log.last() == vote {
            state.is_broken |= !state.committed.is_kept(log, Vote::MAX);
            state.committed.commit(log, vote);
        }
    }
}

impl Model for Votes {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let vote = vote_of(1, 0);
        let mut nodes = [Node { vote, flushed: vote, ..Node::default() }; 3];
        nodes[0].leads = true;
        let (requests, answers, committed) = Default::default();
        vec![State { nodes, requests, answers, committed, has_lost_power: false, is_broken: false }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.is_broken {
            return;
        }
        for (place, node) in (0..NODES).zip(&state.nodes) {
            if term_of(node.vote) < TERMS && !node.leads {
                steps.push(Step::Stand(place));
            }
            if node.flushed != node.vote {
                steps.push(Step::Flush(place));
            }
            let requests = (0..).zip(&state.requests).filter_map(|(vote, log)| Some((vote, (*log)?)));
            let granted = requests.filter(|(vote, log)| self.may_vote(node, *vote, *log));
            steps.extend(granted.map(|(vote, _)| Step::Vote(place, vote)));
            if node.stands && state.answers[node.vote as usize] > 0 {
                steps.push(Step::Win(place));
            }
            if node.leads {
                if node.log.len() < ENTRIES && node.log.last() != node.vote {
                    steps.push(Step::Write(place));
                }
                let accepts = |other: &u8| {
                    let follower = &state.nodes[*other as usize];
                    *other != place
                        && follower.vote <= node.vote
                        && (follower.vote, follower.log) != (node.vote, node.log)
                };
                steps.extend((0..NODES).filter(accepts).map(|other| Step::Append(place, other)));
            }
            if !state.has_lost_power {
                steps.push(Step::LosePower(place));
            }
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Stand(place) => {
                let term = term_of(state.nodes[place as usize].vote) + 1;
                self.set_vote(&mut state, place, vote_of(term, place));
            }
            Step::Flush(place) => {
                let node = &mut state.nodes[place as usize];
                node.flushed = node.vote;
                Self::send(&mut state, place);
            }
            Step::Vote(place, vote) => self.set_vote(&mut state, place, vote),
            Step::Win(place) => {
                let node = &mut state.nodes[place as usize];
                (node.stands, node.leads) = (false, true);
                state.is_broken |= !state.committed.is_kept(node.log, node.vote);
            }
            Step::Write(place) => {
                let node = &mut state.nodes[place as usize];
                node.log.0[node.log.len()] = node.vote;
            }
            Step::Append(leader, follower) => Self::append(&mut state, leader, follower),
            Step::LosePower(place) => {
                let node = &mut state.nodes[place as usize];
                (node.vote, node.stands, node.leads) = (node.flushed, false, false);
                state.has_lost_power = true;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        type P = Property<Votes>;
        vec![
            P::always(COMPLETE, |_, it| !it.is_broken),
            P::sometimes("two nodes lead in one term, by their own account", |_, it| {
                let mut leaders = it.nodes.iter().filter(|node| node.leads).map(|node| term_of(node.vote));
                leaders.next().is_some_and(|term| leaders.any(|other| other == term))
            }),
            P::sometimes("a leader of the last term commits after a loss of power", |_, it| {
                it.has_lost_power && term_of(it.committed.0[ENTRIES - 1].1) == TERMS
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker as _;

    use super::*;
    use crate::search;

    #[test]
    fn leaders_have_all_committed_entries_in_all_interleavings() {
        let explored = search::explored(Votes::default());
        explored.assert_properties();
        assert!(explored.is_done() && explored.unique_state_count() > 100_000, "the space has shrunk");
    }

    #[test]
    fn each_mistake_of_a_vote_loses_a_committed_entry() {
        for mistake in MISTAKES {
            let broken = search::broken(Votes::with(mistake));
            assert_eq!(broken.map(|(rule, _)| rule), Some(COMPLETE), "{mistake}");
        }
    }
}
