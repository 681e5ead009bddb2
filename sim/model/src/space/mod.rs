//! Interleavings of a cluster of three nodes, a client that holds a lock, and a successor that believes in
//! the lock as soon as the log grants the lock, and for good: no client believes sooner or for longer.
//!
//! Time is a number of ticks, recorded as ages, so that a run has no end and the space is finite. A session
//! lasts [`TIMEOUT`] ticks both for the client, since sending the last answered keepalive, and for the
//! leader, since the touch: a slow clock here, a fast clock there, and the delay of the client's code use up
//! the margin of a tenth. An earlier end of the belief or a later expiry is allowed too and adds nothing.
//!
//! Bounds: `TERMS` terms, one keepalive and one unread answer of a follower per leader at a time. A follower
//! accepts a request at the moment of sending, or not at all; the leader reads the answer at any later
//! moment. All else happens at any time, or never. Nodes differ by their state only, so the states are
//! sorted.

mod properties;

use rowlock_env::mutant::Mutant;
use stateright::{Model, Property};

use crate::rules::{Bounds, Event, Rule, RuleChecker, Time};

/// Session timeout, in ticks.
pub const TIMEOUT: u8 = 3;
/// A leader with older contact to a quorum expires no session.
const CONTACT: u8 = 1;
/// Bound on consecutive leaders.
const TERMS: u8 = 3;
/// Present moment, from which ages count back.
const NOW: Time = TIMEOUT as Time;
const SESSION: i64 = 1;

/// Deliberate mistakes of `core/env/src/mutant.rs` that the model can make.
pub const MISTAKES: [Mutant; 10] = [
    Mutant::IgnoreDeadline,
    Mutant::DeadlineFromReceipt,
    Mutant::ExpireEarly,
    Mutant::ExpireATickEarly,
    Mutant::KeepOldDeadlines,
    Mutant::ServeWithoutQuorum,
    Mutant::AnswerCountsForLater,
    Mutant::PongByItself,
    Mutant::AnswerUnreported,
    Mutant::NobodyForgiven,
];

/// Model, with an optional mistake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    mistake: Option<Mutant>,
    /// Ticks by which the clocks differ beyond the margin.
    beyond_margin: u8,
}

/// Leader, by its own account. Fields are ages in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Leader {
    term: u8,
    /// Age of the session's last touch.
    timer: u8,
    /// Age of the last request that, to the leader's knowledge, a quorum has acknowledged.
    contact: u8,
    /// Age of the request whose acknowledgment the leader has not read yet.
    unread: Option<u8>,
    /// The leader stalled or had no contact: a restart of the timer must precede the next expiry.
    owes: bool,
    /// The leader has decided to expire the session.
    has_decided: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    /// Term below which the node accepts no leader.
    term: u8,
    leads: Option<Leader>,
    /// Timer of the node's former term ([`Mutant::KeepOldDeadlines`]).
    kept: Option<u8>,
}

/// Keepalive of the client, with the ages of its sending and of the touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Keepalive {
    None,
    Sent(u8),
    /// The leader of the term has restarted the timer.
    Touched {
        sent: u8,
        touched: u8,
        term: u8,
    },
    /// The answer is under way.
    Answered(u8),
}

/// State of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; 3],
    keepalive: Keepalive,
    /// Age of the last answered keepalive.
    acknowledged: u8,
    /// The session has expired in the log, and the successor holds the lock.
    is_granted: bool,
    rules: RuleChecker,
    broken: Option<Rule>,
}

/// Step of the model. Numbers are indexes of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Tick,
    /// The first node is elected with the vote of the second.
    Elect(usize, usize),
    /// A follower accepts a leader's request.
    Acknowledge(usize, usize),
    /// A leader reads the answer.
    Read(usize),
    /// The client sends a heartbeat.
    Send,
    /// The keepalive or its answer is lost.
    Lose,
    /// A leader restarts the timer.
    Touch(usize),
    /// A leader answers the keepalive after its touch.
    Confirm(usize),
    /// A node answers a keepalive without any leader's touch.
    AnswerUntouched,
    /// The client reads the answer.
    Receive,
    /// A leader's process continues after a stall.
    Resume(usize),
    /// A leader checks contact and timers.
    CheckTimers(usize),
    /// A leader and a follower have the end of the session in their logs.
    Commit(usize, usize),
}

impl Space {
    pub fn with(mistake: Mutant) -> Self {
        Space { mistake: Some(mistake), ..Space::default() }
    }

    /// Returns a model with clocks that differ by more than the documented bound.
    pub fn with_clocks_beyond_the_margin() -> Self {
        Space { beyond_margin: 1, ..Space::default() }
    }

    fn makes(&self, mistake: Mutant) -> bool {
        self.mistake == Some(mistake)
    }

    /// Returns the time for which the client believes after sending.
    fn lasts(&self) -> u8 {
        TIMEOUT + self.beyond_margin
    }

    fn believes(&self, state: &State) -> bool {
        state.acknowledged < self.lasts() || self.makes(Mutant::IgnoreDeadline)
    }

    /// Returns the age of a touch at which a leader expires the session.
    fn expires_at(&self) -> u8 {
        match self.mistake {
            Some(Mutant::ExpireEarly) => TIMEOUT / 2,
            Some(Mutant::ExpireATickEarly) => TIMEOUT - 1,
            _ => TIMEOUT,
        }
    }

    fn tick(&self, state: &mut State) {
        let older = |age: u8| (age + 1).min(TIMEOUT);
        let (newest, is_granted) = (state.newest_term(), state.is_granted);
        for node in &mut state.nodes {
            node.kept = node.kept.map(older);
            if let Some(leader) = &mut node.leads {
                leader.contact = older(leader.contact);
                if leader.term == newest && !is_granted {
                    leader.timer = older(leader.timer);
                }
                // An older answer changes nothing.
                leader.unread = leader.unread.map(older).filter(|age| *age < TIMEOUT);
            }
        }
        state.acknowledged = (state.acknowledged + 1).min(self.lasts());
        state.keepalive = match state.keepalive {
            Keepalive::Sent(age) if age + 1 < TIMEOUT => Keepalive::Sent(age + 1),
            Keepalive::Touched { sent, touched, term } if sent + 1 < TIMEOUT => {
                Keepalive::Touched { sent: sent + 1, touched: touched + 1, term }
            }
            Keepalive::Answered(age) if age + 1 < TIMEOUT => Keepalive::Answered(age + 1),
            _ => Keepalive::None,
        };
        state.rules.pass(NOW);
    }

    fn elect(&self, state: &mut State, candidate: usize, voter: usize) {
        let term = state.newest_term() + 1;
        for place in [candidate, voter] {
            state.follow(place, term, self);
        }
        state.ignore_timers();
        let timer = state.nodes[candidate].kept.take().unwrap_or(0);
        // The quorum has just voted for the leader.
        let (contact, unread) = (0, None);
        state.nodes[candidate].leads =
            Some(Leader { term, timer, contact, unread, owes: false, has_decided: false });
        state.observe(Event::Leads { node: term.into(), term: term.into() });
    }

    /// Lets the leader check its contact, restart the timer after a stall, or decide on the session's end.
    fn check_timers(&self, state: &mut State, place: usize) {
        let Some(leader) = &mut state.nodes[place].leads else { return };
        let has_contact = leader.contact <= CONTACT || self.makes(Mutant::ServeWithoutQuorum);
        if !has_contact {
            leader.owes = true;
        } else if leader.owes {
            leader.owes = false;
            if !self.makes(Mutant::NobodyForgiven) {
                leader.timer = 0;
            }
        } else if leader.timer >= self.expires_at() && !leader.has_decided {
            leader.has_decided = true;
            let (term, contact) = (leader.term.into(), ago(leader.contact));
            state.observe(Event::Expires { node: term, term, session: SESSION, contact });
        }
    }

    fn read(&self, leader: &mut Leader) {
        // A leader sends requests all the time: the latest request left right now.
        let counts_for = |age| if self.makes(Mutant::AnswerCountsForLater) { 0 } else { age };
        if let Some(age) = leader.unread.take() {
            leader.contact = leader.contact.min(counts_for(age));
        }
    }

    fn confirm(&self, state: &mut State, leader: &Leader) {
        let Keepalive::Touched { sent, touched, .. } = state.keepalive else { return };
        let (term, since) = (leader.term.into(), ago(leader.contact));
        state.observe(Event::Contact { node: term, term, since });
        let touched = ago(touched);
        state.observe(Event::Confirms { session: SESSION, touched, touched_by: touched, since });
        state.keepalive = Keepalive::Answered(sent);
    }

    fn receive(&self, state: &mut State) {
        let Keepalive::Answered(sent) = state.keepalive else { return };
        let counts_from = if self.makes(Mutant::DeadlineFromReceipt) { 0 } else { sent };
        state.acknowledged = state.acknowledged.min(counts_from);
        state.keepalive = Keepalive::None;
        let sent = ago(state.acknowledged);
        state.observe(Event::Assured { session: SESSION, sent, until: sent + Time::from(self.lasts()) });
    }

    fn commit(&self, state: &mut State) {
        state.is_granted = true;
        state.ignore_timers();
        state.observe(Event::Ended { session: SESSION, is_expired: true, term: None });
        if self.believes(state) {
            state.observe(Event::Believes { session: SESSION });
        }
    }
}

/// Returns the moment `age` ticks ago.
fn ago(age: u8) -> Time {
    NOW - Time::from(age.min(TIMEOUT))
}

impl State {
    fn newest_term(&self) -> u8 {
        self.nodes.iter().map(|node| node.term).max().unwrap_or_default()
    }

    /// Resets the leaders' timers: later decisions of leaders cannot enter the log, or change nothing, so
    /// only their answers to keepalives matter.
    fn ignore_timers(&mut self) {
        for leader in self.nodes.iter_mut().filter_map(|node| node.leads.as_mut()) {
            (leader.timer, leader.owes) = (0, false);
        }
    }

    /// Reports whether the leader's decisions matter.
    fn decides(&self, leader: &Leader) -> bool {
        leader.term == self.newest_term() && !self.is_granted
    }

    fn observe(&mut self, event: Event) {
        if let Err(broken) = self.rules.observe(NOW, event) {
            self.broken.get_or_insert(broken.rule);
        }
    }

    /// Lets a node accept the leader of a term, and give up any earlier leadership.
    fn follow(&mut self, place: usize, term: u8, space: &Space) {
        let node = &mut self.nodes[place];
        node.term = term;
        if let Some(leader) = node.leads.take_if(|leader| leader.term < term) {
            node.kept = space.makes(Mutant::KeepOldDeadlines).then_some(leader.timer);
            self.observe(Event::Stopped { node: leader.term.into() });
        }
    }

    fn steps_of(&self, place: usize, leader: &Leader, space: &Space, steps: &mut Vec<Step>) {
        if leader.unread.is_some() {
            steps.push(Step::Read(place));
        }
        if self.decides(leader) {
            steps.push(Step::CheckTimers(place));
            if !leader.owes {
                steps.push(Step::Resume(place));
            }
        }
        match self.keepalive {
            // No leader touches a session after deciding on its end.
            Keepalive::Sent(_) if !leader.has_decided => steps.push(Step::Touch(place)),
            Keepalive::Touched { touched, term, .. }
                if term == leader.term
                    && !leader.has_decided
                    && (leader.contact <= touched || space.makes(Mutant::ServeWithoutQuorum)) =>
            {
                steps.push(Step::Confirm(place));
            }
            _ => {}
        }
        for (other, node) in self.nodes.iter().enumerate().filter(|(other, _)| *other != place) {
            if node.term > leader.term {
                continue;
            }
            if leader.unread.is_none() && leader.contact > 0 {
                steps.push(Step::Acknowledge(place, other));
            }
            if leader.has_decided && !self.is_granted {
                steps.push(Step::Commit(place, other));
            }
        }
    }
}

impl Model for Space {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let bounds = Bounds { timeout_percent: Some(100), contact: CONTACT.into() };
        let nodes = [Node::default(); 3];
        let (keepalive, rules) = (Keepalive::None, RuleChecker::new(bounds));
        let mut state = State { nodes, keepalive, acknowledged: 0, is_granted: false, rules, broken: None };
        self.elect(&mut state, 0, 1);
        state.observe(Event::Opened { session: SESSION, timeout: TIMEOUT.into() });
        state.observe(Event::Assured { session: SESSION, sent: NOW, until: NOW + Time::from(self.lasts()) });
        state.nodes.sort_unstable();
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        steps.push(Step::Tick);
        match state.keepalive {
            Keepalive::None if self.believes(state) && state.acknowledged > 0 => steps.push(Step::Send),
            Keepalive::None => {}
            Keepalive::Sent(_)
                if self.makes(Mutant::PongByItself) || self.makes(Mutant::AnswerUnreported) =>
            {
                steps.extend([Step::AnswerUntouched, Step::Lose]);
            }
            Keepalive::Answered(_) => steps.extend([Step::Receive, Step::Lose]),
            Keepalive::Sent(_) | Keepalive::Touched { .. } => steps.push(Step::Lose),
        }
        let newest = state.newest_term();
        for (place, node) in state.nodes.iter().enumerate() {
            if let Some(leader) = &node.leads {
                state.steps_of(place, leader, self, steps);
            }
            let leads_all = node.leads.is_some_and(|leader| leader.term == newest);
            if newest < TERMS && !state.is_granted && !leads_all {
                steps.extend((0..3).filter(|voter| *voter != place).map(|voter| Step::Elect(place, voter)));
            }
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let leader = |state: &State, place: usize| state.nodes[place].leads.expect("a leader's step");
        let change = |state: &mut State, place: usize, change: &dyn Fn(&mut Leader)| {
            change(state.nodes[place].leads.as_mut().expect("a leader's step"));
        };
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Elect(candidate, voter) => self.elect(&mut state, candidate, voter),
            Step::Acknowledge(place, follower) => {
                let term = leader(&state, place).term;
                state.follow(follower, term, self);
                change(&mut state, place, &|leader| leader.unread = Some(0));
            }
            Step::Read(place) => change(&mut state, place, &|leader| self.read(leader)),
            Step::Send => state.keepalive = Keepalive::Sent(0),
            Step::Lose => state.keepalive = Keepalive::None,
            Step::Touch(place) => {
                let Keepalive::Sent(sent) = state.keepalive else { return None };
                let term = leader(&state, place).term;
                change(&mut state, place, &|leader| leader.timer = 0);
                state.keepalive = Keepalive::Touched { sent, touched: 0, term };
            }
            Step::Confirm(place) => {
                let leader = leader(&state, place);
                self.confirm(&mut state, &leader);
            }
            Step::AnswerUntouched => {
                let Keepalive::Sent(sent) = state.keepalive else { return None };
                state.keepalive = Keepalive::Answered(sent);
            }
            Step::Receive => self.receive(&mut state),
            Step::Resume(place) => {
                change(&mut state, place, &|leader| leader.owes = true);
                let node = leader(&state, place).term.into();
                state.observe(Event::Resumed { node });
            }
            Step::CheckTimers(place) => self.check_timers(&mut state, place),
            Step::Commit(place, follower) => {
                let term = leader(&state, place).term;
                state.follow(follower, term, self);
                self.commit(&mut state);
            }
        }
        if state.nodes.iter().filter(|node| node.leads.is_some()).count() < 2 {
            state.rules.forget_elections();
        }
        state.nodes.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker as _;

    use super::*;
    use crate::search;

    #[test]
    fn all_rules_hold_in_all_interleavings() {
        let explored = search::explored(Space::default());
        explored.assert_properties();
        assert!(explored.is_done() && explored.unique_state_count() > 200_000, "the space has shrunk");
    }

    #[test]
    fn each_mistake_breaks_its_rule() {
        for mistake in MISTAKES {
            let rule = match mistake {
                Mutant::IgnoreDeadline => Rule::NoBeliefInTheExpired.name(),
                Mutant::DeadlineFromReceipt | Mutant::PongByItself | Mutant::AnswerUnreported => {
                    Rule::ConfirmedByALeader.name()
                }
                Mutant::AnswerCountsForLater => Rule::AnswersCount.name(),
                Mutant::ServeWithoutQuorum => Rule::ContactFirst.name(),
                _ => Rule::WholeTimeout.name(),
            };
            let broken = search::broken(Space::with(mistake));
            assert_eq!(broken.map(|(rule, _)| rule), Some(rule), "{mistake}");
        }
    }

    #[test]
    fn clocks_that_differ_by_more_than_the_margin_break_it() {
        let broken = search::broken(Space::with_clocks_beyond_the_margin());
        assert!(broken.is_some_and(|(rule, _)| rule.contains("assured") || rule.contains("believe")));
    }
}
