//! Steps of the model: which steps a state allows, and what they do.

use super::log::{Entry, Kind};
use super::mistake::Mistake;
use super::state::{Node, Rules, State, TIMEOUT};

/// Bound on consecutive leaders.
const TERMS: u8 = 3;

/// Cause of a loss of unflushed entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    Power,
    /// The power goes between the mark "closed" and the flush.
    PowerAfterClosed,
    FailedFlush,
}

/// Step of the model. Numbers are indexes of nodes; the last one of [`Step::Lose`] is a number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Tick,
    /// The second node votes for the first.
    Elect(usize, usize),
    /// A learner votes for the node.
    ElectWithLearner(usize),
    /// A leader appends the write of a znode.
    Write(usize),
    /// A leader appends a grant of the lock.
    Grant(usize),
    /// A leader adds the third node to the voters.
    Change(usize),
    /// A follower accepts a leader's term and all missing entries.
    Send(usize, usize),
    Flush(usize),
    /// A leader confirms the holder's session, after an answer of a follower.
    Confirm(usize, usize),
    /// The holder releases the lock.
    Release,
    /// A node loses unflushed entries and starts again.
    Lose(usize, u8, Cause),
    /// A leader admits a node that has forgotten.
    Admit(usize, usize),
    /// A node that has forgotten is killed and starts again.
    Kill(usize),
}

impl Rules {
    /// Returns the new leader's first entry, if the two voters elect the candidate.
    pub fn elected(self, state: &State, candidate: usize, voter: usize) -> Option<Kind> {
        let voters = [&state.nodes[candidate], &state.nodes[voter]];
        let remember = |node: &&Node| !node.has_forgotten || self.makes(Mistake::VotesThoughForgotten);
        let is_ordinary = voters.iter().all(remember);
        let any_log = !is_ordinary && self.makes(Mistake::AnyLogRestarts);
        let is_long_enough = any_log || voters[0].log.rank() >= voters[1].log.rank();
        if !is_long_enough || !self.are_quorum(voters[0].log, voters) {
            return None;
        }
        if is_ordinary {
            return Some(Kind::Blank);
        }
        let forgotten = state.nodes.iter().filter(|node| node.has_forgotten).count();
        (forgotten >= 2 || !self.makes(Mistake::OnlyIfTooManyForgot)).then_some(Kind::Restart)
    }

    /// Appends the allowed steps.
    pub fn allowed(self, state: &State, steps: &mut Vec<Step>) {
        let mut ticked = *state;
        ticked.tick(self);
        if self.has_clients && ticked != *state {
            steps.push(Step::Tick);
        }
        if self.has_clients && state.holder.is_some_and(|holder| holder.believes()) {
            steps.push(Step::Release);
        }
        for place in 0..3 {
            self.allowed_alone(state, place, steps);
            for other in (0..3).filter(|other| *other != place) {
                self.allowed_with(state, [place, other], steps);
            }
        }
    }

    fn allowed_alone(self, state: &State, place: usize, steps: &mut Vec<Step>) {
        let node = &state.nodes[place];
        // A flush of other entries prevents a loss that need not happen anyway.
        if self.acknowledged(node) < node.log.length() || node.flushed_term < node.term {
            steps.push(Step::Flush(place));
        }
        if state.losses < self.losses {
            for keep in node.flushed..=node.log.length() {
                steps.push(Step::Lose(place, keep, Cause::Power));
                if self.makes(Mistake::ClosedBeforeFlush) {
                    steps.push(Step::Lose(place, keep, Cause::PowerAfterClosed));
                }
                if self.makes(Mistake::FailedFlushUnmarked) {
                    steps.push(Step::Lose(place, keep, Cause::FailedFlush));
                }
            }
        }
        if node.has_forgotten && self.makes(Mistake::MarkOverwritten) {
            steps.push(Step::Kill(place));
        }
        if self.makes(Mistake::LearnerCounts) && node.has_forgotten && state.newest_term() < TERMS {
            steps.push(Step::ElectWithLearner(place));
        }
        if node.leads.is_none() || !state.has_committed(node) {
            return;
        }
        let count = |kind| node.log.count(|entry| entry.kind == kind);
        if self.writes && count(Kind::Znode) == 0 {
            steps.push(Step::Write(place));
        }
        if state.grants < self.grants && self.next_grant(node, state.holder).is_some() {
            steps.push(Step::Grant(place));
        }
        if self.changes_voters && count(Kind::Change) == 0 {
            steps.push(Step::Change(place));
        }
    }

    fn allowed_with(self, state: &State, [place, other]: [usize; 2], steps: &mut Vec<Step>) {
        if state.newest_term() < TERMS && self.elected(state, place, other).is_some() {
            steps.push(Step::Elect(place, other));
        }
        let (leader, follower) = (&state.nodes[place], &state.nodes[other]);
        if leader.leads.is_none() || follower.term > leader.term {
            return;
        }
        let lacks = leader.log.common(follower.log) < leader.log.length();
        if lacks || follower.term < leader.term {
            steps.push(Step::Send(place, other));
        }
        if follower.term < leader.term {
            return;
        }
        if follower.has_forgotten && (!lacks || self.makes(Mistake::AdmittedAtOnce)) {
            steps.push(Step::Admit(place, other));
        }
        let is_sure = state.has_committed(leader) && self.are_quorum(leader.log, [leader, follower]);
        if self.has_clients && is_sure {
            let mut confirmed = *state;
            confirmed.confirm(place, self);
            if confirmed != *state {
                steps.push(Step::Confirm(place, other));
            }
        }
    }

    /// Returns the state after a step and all commits that the step allows.
    pub fn after(self, state: &State, step: Step) -> State {
        let mut next = *state;
        match step {
            Step::Tick => next.tick(self),
            Step::Elect(candidate, voter) => {
                let first = self.elected(state, candidate, voter).expect("an allowed step");
                next.elect(candidate, &[candidate, voter], first, self);
            }
            Step::ElectWithLearner(candidate) => next.elect(candidate, &[candidate], Kind::Restart, self),
            Step::Write(leader) => next.append(leader, Kind::Znode),
            Step::Grant(leader) => {
                let grant = self.next_grant(&next.nodes[leader], state.holder).expect("an allowed step");
                next.append(leader, grant);
                next.grants += 1;
            }
            Step::Change(leader) => next.append(leader, Kind::Change),
            Step::Send(leader, follower) => next.send(leader, follower),
            Step::Flush(node) => next.flush(node),
            Step::Confirm(leader, _) => next.confirm(leader, self),
            Step::Release => {
                if let Some(holder) = &mut next.holder {
                    (holder.has_released, holder.age) = (true, TIMEOUT);
                }
            }
            Step::Lose(node, keep, cause) => {
                let is_noticed = cause == Cause::Power && !self.makes(Mistake::BootIdByPrefix);
                next.lose(node, keep, is_noticed);
            }
            Step::Admit(_, node) | Step::Kill(node) => next.nodes[node].has_forgotten = false,
        }
        if next.losses == self.losses {
            // Nothing is lost any more, so a later flush promises less.
            (0..3).for_each(|place| next.flush(place));
        }
        next.commit(self);
        if !self.makes(Mistake::VoteNotFlushed) {
            next.drop_old_leaders();
        }
        next
    }

    /// Reports whether the two nodes alone come to another grant, without further faults: an election, all
    /// entries on both disks, and as much time as a leader may wait. A held lock ends with its session.
    pub fn recovers(self, state: &State, pair: [usize; 2]) -> bool {
        let candidate = usize::from(state.nodes[pair[0]].log.rank() < state.nodes[pair[1]].log.rank());
        let (candidate, follower) = (pair[candidate], pair[1 - candidate]);
        let Some(kind) = self.elected(state, candidate, follower) else { return false };
        let mut leader = state.nodes[candidate];
        (leader.term, leader.leads) = (state.newest_term() + 1, Some(TIMEOUT));
        leader.log.push(Entry { term: leader.term, kind });
        let is_held =
            !self.is_in_grace(leader.log) && leader.log.last(|entry| entry.kind == Kind::Grant).is_some();
        is_held || self.next_grant(&leader, state.holder).is_some()
    }
}

impl State {
    /// Reports whether the leader has committed an entry of its own term. Before, a leader neither takes
    /// commands nor confirms sessions.
    fn has_committed(&self, leader: &Node) -> bool {
        self.committed.last_term() == leader.term || leader.term == 1
    }

    fn append(&mut self, leader: usize, kind: Kind) {
        let node = &mut self.nodes[leader];
        node.log.push(Entry { term: node.term, kind });
    }
}
