//! Reference of a simulated cluster: one machine that applies every entry after the first node has applied
//! the entry, and beside the machine the oracle, which knows none of the machine's rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_oracle::{Breach, Heard, Oracle};
use rowlock_proto::{NodeId, Zxid};
use rowlock_state::Machine;
use rowlock_state::command::Batch;

use super::{FactRecorder, Recorded, Recorder, data};
use crate::history::access::RULES;
use crate::history::node::Position;
use crate::history::{Fact, Index, Locks, Millis, NewLife, Origin};

/// Entries between two comparisons of the whole state.
const COMPARE_EVERY: u64 = 256;

/// Node number of the reference's digests, which no real node has.
pub const REFERENCE_NODE: NodeId = NodeId(0);

/// State by the log, independent of all nodes.
pub struct Reference {
    machine: Machine,
    /// `None` after the first difference, which makes others.
    oracle: Option<Oracle>,
    fact_recorder: FactRecorder,
    applied: Index,
    /// Digests of all states so far, by their last zxid.
    states: BTreeMap<Zxid, BTreeSet<u64>>,
}

impl Reference {
    /// Creates the reference before the first entry, with facts about these locks.
    pub fn new(locks: Locks) -> Self {
        let (machine, oracle) = (Machine::new(), Some(Oracle::default()));
        let (fact_recorder, states) = (FactRecorder::new(locks), BTreeMap::new());
        Reference { machine, oracle, fact_recorder, applied: Index(0), states }
    }

    /// Creates the reference of a cluster with this state after the entry `applied`. Returns the state as
    /// facts too.
    pub fn after(locks: Locks, machine: Machine, applied: Index) -> (Self, Vec<Fact>) {
        let oracle = Some(Oracle::of(&machine));
        let mut reference = Reference { machine, oracle, applied, ..Reference::new(locks) };
        let mut facts = reference.fact_recorder.start(&reference.machine);
        facts.push(reference.shown());
        (reference, facts)
    }

    /// Continues with the first state of a new cluster, after the entry `beginning`.
    pub fn begin_anew(&mut self, machine: Machine, beginning: Position) -> Fact {
        self.fact_recorder = FactRecorder::new(self.fact_recorder.locks().clone());
        (self.oracle, self.machine, self.applied) = (Some(Oracle::of(&machine)), machine, beginning.index);
        self.states.clear();
        let mut begins_with = self.fact_recorder.limits(&self.machine);
        begins_with.extend(data::all(&self.machine));
        begins_with.push(data::rules(&self.machine, self.machine.last_zxid()));
        begins_with.push(self.shown());
        let floor = self.machine.last_zxid();
        Fact::NewLife(Arc::new(NewLife { beginning, floor, begins_with }))
    }

    /// Reports whether there has been a state with this last zxid and this digest.
    pub fn has_been(&self, zxid: Zxid, digest: u64) -> bool {
        self.states.get(&zxid).is_some_and(|states| states.contains(&digest))
    }

    fn shown(&mut self) -> Fact {
        let digest = self.machine.digest();
        self.states.entry(self.machine.last_zxid()).or_default().insert(digest);
        Fact::Replica { node: REFERENCE_NODE, index: self.applied, digest, origin: Origin::Apply }
    }

    /// Compares the whole state with the oracle's.
    pub fn compare(&mut self) -> Option<Fact> {
        let checked = self.oracle.as_ref().map_or(Ok(()), |oracle| oracle.check_all(&self.machine));
        checked.err().map(|breach| self.disagreed(breach))
    }

    fn disagreed(&mut self, Breach { promise, what }: Breach) -> Fact {
        self.oracle = None;
        Fact::Disagreed { promise, what }
    }

    /// Returns the last applied entry.
    pub fn applied(&self) -> Index {
        self.applied
    }

    /// Returns the state after the last applied entry.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the facts of the entry at `index`, right after the report of the first node that applied the
    /// entry; none for an entry applied before. `payload` belongs to an entry with commands.
    ///
    /// # Errors
    /// The entry cannot be decoded, or does not follow the last one: no node may have applied such an entry.
    pub fn apply(&mut self, index: Index, payload: Option<&[u8]>) -> Result<Vec<Fact>, String> {
        // openraft numbers entries from 0, and entry 0 never has commands.
        if index <= self.applied {
            return Ok(Vec::new());
        }
        let follows = index.0 == self.applied.0 + 1;
        if !follows {
            return Err(format!("{index:?} was applied, and {:?} was the last before it", self.applied));
        }
        self.applied = index;
        let mut facts = Vec::new();
        if let Some(payload) = payload {
            let batch = Batch::decode(payload).map_err(|error| format!("{index:?}: {error}"))?;
            self.run(&batch, &mut facts);
        }
        if index.0.is_multiple_of(COMPARE_EVERY) {
            facts.extend(self.compare());
        }
        facts.push(self.shown());
        Ok(facts)
    }

    fn run(&mut self, batch: &Batch, facts: &mut Vec<Fact>) {
        let Reference { machine, oracle, fact_recorder, .. } = self;
        let (takes, ordinal) = (machine.takes(batch.ordinal), batch.ordinal);
        let mut breach = None;
        if oracle.as_mut().is_some_and(|oracle| oracle.takes(ordinal) != takes) {
            let (promise, what) = ("session-order", format!("{ordinal:?} was applied: {takes}"));
            breach = Some(Breach { promise, what });
        }
        for proposal in batch.proposals.iter().filter(|_| takes) {
            let before = machine.last_zxid();
            let mut recorder = Recorder::default();
            let mut heard = Heard::before(&mut recorder);
            let applied = machine.apply_stamped(batch.stamp(), proposal, &mut heard);
            if let Some(oracle) = oracle.as_mut().filter(|_| breach.is_none()) {
                let found = (&applied, &heard.events[..]);
                breach = oracle.check((batch.stamp(), proposal), machine, found).err();
            }
            let at = Millis(machine.time_ms());
            let changed = applied.zxid != before || !recorder.0.is_empty();
            facts.extend(fact_recorder.answered(proposal, &applied, changed));
            if applied.zxid != before {
                facts.extend(data::logged(proposal, &applied));
            }
            for recorded in recorder.0 {
                if let Recorded::Changed { zxid, path, kind } = &recorded {
                    facts.extend(data::changed(machine, *zxid, path, *kind));
                    facts.extend((path == RULES).then(|| data::rules(machine, *zxid)));
                }
                facts.extend(fact_recorder.facts(recorded, machine, at));
            }
            facts.push(Fact::Committed { zxid: applied.zxid });
        }
        facts.extend(breach.map(|breach| self.disagreed(breach)));
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::Acl;
    use rowlock_proto::request::Create;
    use rowlock_proto::{CreateMode, Request, SessionId};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Command, Origin as From, Proposal};

    use super::*;
    use crate::history::client::{Answer, ZnodeChange};

    fn entry(session: SessionId, commands: Vec<Command>) -> Vec<u8> {
        let proposal = |command| Proposal {
            origin: From::default(),
            session,
            attachment: Attachment(1),
            identities: Default::default(),
            command,
        };
        let proposals = commands.into_iter().map(proposal).collect();
        Batch { time_ms: 7, proposals, ..Batch::default() }.encode().to_vec()
    }

    fn create(path: &str) -> Command {
        let flags = CreateMode::Persistent.flags();
        let create = Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags };
        Command::Client(Request::Create2(create))
    }

    #[test]
    fn a_write_of_plain_znodes_is_told_with_its_answer_and_what_it_changed() {
        let mut reference = Reference::new(Locks::at(Vec::new()));
        let opening = Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 1_000 };
        let facts = reference.apply(Index(1), Some(&entry(SessionId::NONE, vec![opening]))).unwrap();
        let opened = facts.iter().find_map(|fact| match fact {
            Fact::SessionOpened { session, .. } => Some(*session),
            _ => None,
        });
        let session = opened.expect("a session was opened");
        let writes = vec![create("/data"), create("/data/a"), create("/elsewhere")];
        let facts = reference.apply(Index(2), Some(&entry(session, writes))).unwrap();
        let logged: Vec<_> = facts
            .iter()
            .filter_map(|fact| match fact {
                Fact::Logged(logged) => Some(logged.result.clone()),
                _ => None,
            })
            .collect();
        assert!(matches!(&logged[..], [Ok(_), Ok(Answer::Created { path, .. })] if path == "/data/a"));
        let changes: Vec<_> = facts
            .iter()
            .filter_map(|fact| match fact {
                Fact::Znode(znode) => Some((znode.path.as_str(), znode.change)),
                _ => None,
            })
            .collect();
        let [
            (_, ZnodeChange::Created),
            ("/data/a", ZnodeChange::Created),
            ("/data", ZnodeChange::Child { .. }),
        ] = changes[..]
        else {
            panic!("{changes:?}");
        };
        assert!(matches!(facts.last(), Some(Fact::Replica { index: Index(2), .. })));
    }

    #[test]
    fn an_entry_is_told_once_and_none_is_left_out() {
        let mut reference = Reference::new(Locks::at(Vec::new()));
        assert_eq!(reference.apply(Index(1), None).unwrap().len(), 1);
        assert_eq!(reference.apply(Index(1), None), Ok(Vec::new()), "another node has applied it");
        assert!(reference.apply(Index(3), None).is_err());
        assert!(reference.apply(Index(2), Some(b"nonsense")).is_err());
    }
}
