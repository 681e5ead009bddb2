//! Observes a node's log and state, and reports facts about them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rowlock_coordinator::{Ballot, NodeHook, Position as LogPosition};
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::Machine;
use rowlock_world::executor::Simulation;
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::What;

use super::record::Record;
use crate::history::Index;
use crate::history::node::{Members, NodeFact, Position, payload_hash};

/// Observer of one life of one node.
pub struct Witness {
    pub sim: Simulation,
    pub host: HostId,
    pub node: NodeId,
    pub record: Record,
}

fn position(of: LogPosition) -> Position {
    Position { term: of.term, leader: of.leader, index: Index(of.index) }
}

impl Witness {
    fn report(&self, what: NodeFact) {
        self.record.node(self.node, what);
    }

    /// Returns the time of an event `age` ago, earlier by the clock error that the bound allows.
    fn ago(&self, age: Duration) -> Nanos {
        let age = age.saturating_add(age / 20);
        Nanos(self.sim.now().0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl NodeHook for Witness {
    fn opened(
        &self,
        vote: Option<Ballot>,
        purged: Option<LogPosition>,
        last: Option<LogPosition>,
        remembers: bool,
    ) {
        let vote = vote.map(|vote| (vote.term, vote.candidate));
        self.report(NodeFact::Opened {
            vote,
            purged: purged.map(position),
            last: last.map(position),
            remembers,
        });
    }

    fn acknowledges(&self, upto: LogPosition) {
        self.report(NodeFact::Acknowledged { upto: position(upto) });
    }

    fn voted(&self, vote: Ballot) {
        self.report(NodeFact::Voted { term: vote.term, candidate: vote.candidate });
    }

    fn members(&self, entry: LogPosition, voters: &[BTreeSet<NodeId>], learners: &BTreeSet<NodeId>) {
        let members = Arc::new(Members { voters: voters.to_vec(), learners: learners.clone() });
        self.report(NodeFact::Members { entry: position(entry), members });
    }

    fn appended(&self, entry: LogPosition, payload: Option<&[u8]>) {
        self.record.may_restart(payload);
        self.report(NodeFact::Appended { entry: position(entry), hash: payload_hash(payload) });
    }

    fn truncated(&self, after: Option<LogPosition>) {
        self.report(NodeFact::Truncated { after: Index(after.map_or(0, |after| after.index)) });
    }

    fn applied(&self, entry: LogPosition, payload: Option<&[u8]>, machine: &Machine) {
        let (entry, hash, digest) = (position(entry), payload_hash(payload), machine.digest());
        self.record.restart_at(entry, payload, machine);
        self.report(NodeFact::Applied { entry, hash, digest });
        self.record.log(entry, payload);
    }

    fn installed(&self, entry: Option<LogPosition>, machine: &Machine) {
        self.report(NodeFact::Installed { entry: entry.map(position), digest: machine.digest() });
        let text = || format!("installs a snapshot up to {}", entry.map_or(0, |entry| entry.index));
        self.sim.trace().record(self.sim.now(), || What::Note { host: Some(self.host), text: text() });
    }

    fn leads(&self, term: u64) {
        self.report(NodeFact::Leads { term });
        self.sim.trace().record(self.sim.now(), || What::Leads { host: self.host, term });
    }

    fn confirms(&self, term: u64, contact: Duration, touched: Duration, sessions: &[SessionId]) {
        let (since, touched, sessions) = (self.ago(contact), self.ago(touched), sessions.to_vec());
        self.report(NodeFact::Confirms { term, since, touched, sessions });
    }

    fn expires(&self, session: SessionId, term: u64, contact: Duration) {
        self.report(NodeFact::Expires { session, term, contact: self.ago(contact) });
    }
}
