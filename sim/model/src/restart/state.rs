//! State of three nodes and of the clients, and the effects of commits, which break promises or keep them.

use super::log::{Entry, Kind, Log};
use super::mistake::{Mistake, Promise};

/// Session timeout and grace, in ticks.
pub const TIMEOUT: u8 = 2;
/// Bound on a node's acknowledged grants that are not flushed.
const UNFLUSHED: u8 = 1;
/// Numbers that a restart adds to the tokens.
const JUMP: u8 = UNFLUSHED;

fn is_grant(entry: Entry) -> bool {
    entry.kind == Kind::Grant
}

/// Variant of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub mistake: Option<Mistake>,
    /// Bound on the losses of power.
    pub losses: u8,
    /// Bound on the grants that leaders append.
    pub grants: u8,
    /// Clients release the lock, sessions are confirmed, and time passes.
    pub has_clients: bool,
    /// A leader may write a znode, once in a log.
    pub writes: bool,
    /// The third node begins as a learner and may join the voters once.
    pub changes_voters: bool,
}

impl Rules {
    pub fn makes(self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Reports whether an entry is acknowledged after its write, before its flush.
    fn is_of_lock_class(self, entry: Entry) -> bool {
        entry.kind == Kind::Grant || entry.kind == Kind::Restart && self.makes(Mistake::RestartNotFlushed)
    }

    /// Reports whether all three nodes vote by the newest membership of the log.
    fn all_vote(self, log: Log) -> bool {
        !self.changes_voters || log.count(|entry| entry.kind == Kind::Change) % 2 == 1
    }

    /// Reports whether the two nodes are a quorum by the newest membership of the log.
    pub fn are_quorum(self, log: Log, nodes: [&Node; 2]) -> bool {
        self.all_vote(log) || !nodes.iter().any(|node| node.is_third)
    }

    /// Returns the number of entries with an acknowledgment of the node.
    pub fn acknowledged(self, node: &Node) -> u8 {
        let mut grants = 0;
        let counts = |(_, entry): &(u8, Entry)| {
            grants += u8::from(entry.kind == Kind::Grant);
            (self.is_of_lock_class(*entry) || self.makes(Mistake::MixedClass))
                && (grants <= UNFLUSHED || self.makes(Mistake::UnboundedUnflushed))
        };
        let unflushed = node.log.iter().skip(node.flushed.into());
        node.flushed + unflushed.take_while(counts).count() as u8
    }

    /// Returns the token of the grant at a position of the log.
    fn token(self, log: Log, at: u8) -> u8 {
        let before = log.prefix(at + 1);
        let jump = if self.makes(Mistake::TokensNotRaised) { 0 } else { JUMP };
        before.count(is_grant) + jump * before.count(|entry| entry.kind == Kind::Restart)
    }

    /// Reports whether the log has ended the sessions from before an entry of this term.
    fn has_ended_sessions(self, log: Log, term: u8) -> bool {
        !self.makes(Mistake::SessionsSurvive)
            && log.iter().any(|(_, entry)| entry.kind == Kind::Restart && entry.term > term)
    }

    /// Returns the length of this leader's grace; `None`: the grace never ends.
    fn grace(self, node: &Node, restart: Entry) -> Option<u8> {
        let is_own = restart.term == node.term;
        match self.mistake {
            Some(Mistake::ShortGrace) => Some(TIMEOUT - 1),
            Some(Mistake::GraceNotRepeated) if !is_own => Some(0),
            Some(Mistake::GraceOfItsLeader) if !is_own => None,
            _ => Some(TIMEOUT),
        }
    }

    /// Reports whether the log's last restart precedes the next grant.
    pub fn is_in_grace(self, log: Log) -> bool {
        let held = log.last(is_grant);
        log.last(|entry| entry.kind == Kind::Restart) > held && !self.survives(held)
    }

    /// Returns the leader's next grant, if the leader may append a grant now.
    pub fn next_grant(self, leader: &Node, holder: Option<Holder>) -> Option<Kind> {
        let timer = leader.leads?;
        let log = leader.log;
        let held = log.last(is_grant);
        let restart = log.last(|entry| entry.kind == Kind::Restart);
        if self.is_in_grace(log) {
            let grace = self.grace(leader, log.get(restart?)?)?;
            return (timer >= grace).then_some(Kind::Grant);
        }
        let has_released = |held| {
            let holder = holder.filter(|holder| holder.at == held && log.get(held) == Some(holder.entry));
            holder.is_some_and(|holder| holder.has_released)
        };
        held.is_none_or(has_released).then_some(Kind::Grant)
    }

    /// Reports whether a holder keeps the lock in a restart.
    fn survives(self, held: Option<u8>) -> bool {
        held.is_some() && self.makes(Mistake::SessionsSurvive)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// Term below which the node follows no leader. Always flushed.
    pub term: u8,
    pub log: Log,
    /// Number of entries on the disk. The others are in the page cache.
    pub flushed: u8,
    /// The node lost unflushed entries, and no leader has admitted the node since.
    pub has_forgotten: bool,
    /// Ticks since the election of this leader, during a grace.
    pub leads: Option<u8>,
    /// Flushed term; differs from the node's term only with [`Mistake::VoteNotFlushed`].
    pub flushed_term: u8,
    /// The node begins as a learner and may join the voters.
    pub is_third: bool,
}

/// Client that was granted the lock last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Position and content of the grant.
    pub at: u8,
    pub entry: Entry,
    /// Ticks since the last confirmation of its session.
    pub age: u8,
    pub has_released: bool,
}

impl Holder {
    pub fn believes(&self) -> bool {
        self.age < TIMEOUT && !self.has_released
    }
}

/// State of the cluster and its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub nodes: [Node; 3],
    /// Log whose entries have been acknowledged to clients.
    pub committed: Log,
    pub holder: Option<Holder>,
    /// Largest token given to a client.
    pub token: u8,
    /// Nodes that have lost power so far.
    pub losses: u8,
    /// Grants that leaders have appended.
    pub grants: u8,
    pub broken: Option<Promise>,
}

impl State {
    pub fn newest_term(&self) -> u8 {
        self.nodes.iter().map(|node| node.term).max().unwrap_or_default()
    }

    pub fn tick(&mut self, rules: Rules) {
        let later = |age: u8| (age + 1).min(TIMEOUT);
        for node in self.nodes.iter_mut().filter(|node| rules.is_in_grace(node.log)) {
            node.leads = node.leads.map(later);
        }
        if let Some(holder) = &mut self.holder {
            holder.age = later(holder.age);
        }
        // Only the place of a released lock matters later.
        self.holder = self.holder.filter(|holder| holder.believes() || holder.has_released);
    }

    /// Makes the candidate the leader of a new term.
    pub fn elect(&mut self, candidate: usize, voters: &[usize], first: Kind, rules: Rules) {
        let term = self.newest_term() + 1;
        for voter in voters {
            let node = &mut self.nodes[*voter];
            (node.term, node.leads) = (term, None);
            if *voter == candidate || !rules.makes(Mistake::VoteNotFlushed) {
                node.flushed_term = term;
            }
        }
        let log = self.nodes[candidate].log;
        let common = log.common(self.committed);
        let lost = self.committed.iter().skip(common.into());
        let mut lost = lost.map(|(_, entry)| entry.kind);
        if lost.clone().any(|kind| matches!(kind, Kind::Znode | Kind::Change)) {
            self.breaks(Promise::ZnodesStay, rules);
        }
        let has_restarted = log.iter().skip(common.into()).any(|(_, entry)| entry.kind == Kind::Restart);
        if first == Kind::Blank && !has_restarted && lost.next().is_some() {
            self.breaks(Promise::ForgottenByRestart, rules);
        }
        let leader = &mut self.nodes[candidate];
        leader.log.push(Entry { term, kind: first });
        (leader.leads, leader.has_forgotten) = (Some(0), false);
    }

    /// Lets a follower accept the leader's term and all missing entries.
    pub fn send(&mut self, leader: usize, follower: usize) {
        let Node { term, log, .. } = self.nodes[leader];
        let node = &mut self.nodes[follower];
        if node.term < term {
            (node.term, node.flushed_term, node.leads) = (term, term, None);
        }
        let common = log.common(node.log);
        if common < log.length() {
            (node.log, node.flushed) = (log, node.flushed.min(common));
        }
    }

    pub fn flush(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        (node.flushed, node.flushed_term) = (node.log.length(), node.term);
    }

    /// Ends the leaderships that no node can follow: the leader could have appended all later entries before.
    pub fn drop_old_leaders(&mut self) {
        let terms = self.nodes.map(|node| node.term);
        for node in &mut self.nodes {
            if terms.iter().filter(|term| **term <= node.term).count() == 1 {
                node.leads = None;
            }
        }
    }

    /// Takes the unflushed entries behind the first `keep` from a node.
    pub fn lose(&mut self, node: usize, keep: u8, is_noticed: bool) {
        self.losses += 1;
        let node = &mut self.nodes[node];
        assert!((node.flushed..=node.log.length()).contains(&keep), "flushed entries stay");
        node.log = node.log.prefix(keep);
        (node.flushed, node.term, node.leads) = (keep, node.flushed_term, None);
        node.has_forgotten |= is_noticed;
    }

    /// Reports whether the leader can confirm the holder's session, as far as the leader's log says.
    fn is_live(holder: &Holder, leader: &Node, rules: Rules) -> bool {
        let log = leader.log;
        let is_there = log.get(holder.at) == Some(holder.entry);
        let is_last = log.last(is_grant) == Some(holder.at);
        !rules.has_ended_sessions(log, holder.entry.term) && (!is_there || is_last) && !holder.has_released
    }

    /// Lets the leader confirm the session of the lock's holder to the client, after an answer of a follower.
    pub fn confirm(&mut self, leader: usize, rules: Rules) {
        if let Some(holder) = self.holder.as_mut().filter(|holder| holder.believes())
            && State::is_live(holder, &self.nodes[leader], rules)
        {
            holder.age = 0;
        }
    }

    /// Commits all entries that leaders can commit now. A later commit, or none, gives the clients no more
    /// and no earlier beliefs.
    pub fn commit(&mut self, rules: Rules) {
        for leader in 0..3 {
            for follower in (0..3).filter(|follower| *follower != leader) {
                let (by, from) = (self.nodes[leader], self.nodes[follower]);
                if by.leads.is_none() || from.term != by.term || !rules.are_quorum(by.log, [&by, &from]) {
                    continue;
                }
                let both = rules.acknowledged(&by).min(rules.acknowledged(&from));
                let committed = by.log.prefix(both.min(by.log.common(from.log)));
                if committed.last_term() == by.term {
                    self.acknowledge(&by, committed, rules);
                }
            }
        }
    }

    /// Tells the clients about newly committed entries.
    fn acknowledge(&mut self, leader: &Node, committed: Log, rules: Rules) {
        let known = committed.common(self.committed);
        if known == committed.length() {
            return;
        }
        self.committed = committed;
        for (at, entry) in committed.iter().skip(known.into()).filter(|(_, entry)| entry.kind == Kind::Grant)
        {
            let token = rules.token(committed, at);
            if token <= self.token {
                self.breaks(Promise::TokensGrow, rules);
            }
            self.token = self.token.max(token);
            // The leader confirmed the session before its election, or when it restarted its timer.
            let age = leader.leads.unwrap_or_default();
            let is_superseded = leader.log.last(is_grant) > Some(at);
            let age = if is_superseded { TIMEOUT } else { age };
            let next = Holder { at, entry, age, has_released: false };
            if next.believes() && self.holder.is_some_and(|holder| holder.believes()) {
                self.breaks(Promise::OneHolder, rules);
            }
            if next.believes() {
                self.holder = Some(next);
            }
        }
    }

    /// Records a broken promise. A search for the promise of a mistake ignores the other promises.
    pub fn breaks(&mut self, promise: Promise, rules: Rules) {
        if rules.mistake.is_none_or(|mistake| mistake.breaks() == promise) {
            self.broken.get_or_insert(promise);
        }
    }
}
