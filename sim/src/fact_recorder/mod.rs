//! Facts about the log, from a reference: one machine that applies every entry after the first node has
//! applied the entry, and beside the machine the oracle, which knows none of the machine's rules. The facts
//! are the events of a command that both have agreed on.

mod data;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_oracle::{Breach, Event, Heard, Oracle};
use rowlock_proto::report::{HistoryEntry, HistoryEvent};
use rowlock_proto::{FencingToken, NodeId, Zxid};
use rowlock_state::command::Batch;
use rowlock_state::outcome::{LockEvent, LockEventKind};
use rowlock_state::{LockView, Machine, Question};

use crate::history::access::RULES;
use crate::history::node::Position;
use crate::history::{Fact, Index, Lock, Locks, Millis, NewLife, Origin};

/// Entries between two comparisons of the whole state.
const COMPARE_EVERY: u64 = 256;

/// Node number of the reference's digests, which no real node has.
pub const REFERENCE_NODE: NodeId = NodeId(0);

/// State by the log, independent of all nodes.
pub struct Reference {
    /// Locks that the facts are about.
    locks: Locks,
    machine: Machine,
    oracle: Oracle,
    applied: Index,
    /// Entries with effects that a restart after a power loss must not undo, each with a command.
    lasting: BTreeMap<Index, String>,
    /// Digests of all states so far, by their last zxid.
    states: BTreeMap<Zxid, BTreeSet<u64>>,
}

impl Reference {
    /// Creates the reference before the first entry, with facts about these locks.
    pub fn new(locks: Locks) -> Self {
        let (machine, oracle, states) = (Machine::new(), Oracle::default(), BTreeMap::new());
        Reference { locks, machine, oracle, applied: Index(0), lasting: BTreeMap::new(), states }
    }

    /// Creates the reference of a cluster with this state after the entry `applied`. Returns the state as
    /// facts too, as if all sessions and queue positions had just come in this order.
    pub fn after(locks: Locks, machine: Machine, applied: Index) -> (Self, Vec<Fact>) {
        let oracle = Oracle::of(&machine);
        let mut reference = Reference { machine, oracle, applied, ..Reference::new(locks) };
        let (machine, mut facts) = (&reference.machine, Vec::new());
        for (id, session) in machine.sessions() {
            let (attachment, timeout_ms) = (session.attachment, session.timeout_ms);
            let at = Millis(machine.time_ms());
            facts.push(Fact::SessionOpened { session: id, attachment, timeout_ms, at });
        }
        for queue in machine.locks() {
            if let Some(lock) = reference.locks.find(queue.path()) {
                facts.extend(queued(lock, &queue, machine.last_zxid()));
            }
        }
        facts.push(reference.shown());
        (reference, facts)
    }

    /// Continues with the first state of a new cluster, after the entry `beginning`.
    pub fn begin_anew(&mut self, machine: Machine, beginning: Position) -> Fact {
        (self.oracle, self.machine, self.applied) = (Oracle::of(&machine), machine, beginning.index);
        self.states.clear();
        self.lasting.clear();
        let mut begins_with = data::all(&self.machine);
        begins_with.extend(data::acls(&self.machine));
        begins_with.push(data::rules(&self.machine, self.machine.last_zxid()));
        begins_with.push(self.shown());
        let floor = self.machine.last_zxid();
        let wild = data::wild(&self.machine);
        Fact::NewLife(Arc::new(NewLife { beginning, floor, wild, begins_with }))
    }

    /// Continues after a restart with the state behind the entry. Backups may have former states.
    pub fn restart(&mut self, machine: Machine, entry: Position) -> Fact {
        let states = std::mem::take(&mut self.states);
        let fact = self.begin_anew(machine, entry);
        states.into_iter().for_each(|(zxid, digests)| self.states.entry(zxid).or_default().extend(digests));
        fact
    }

    /// Checks the entries that a restart at `index` has removed.
    ///
    /// # Errors
    /// One of the entries has an effect that outlasts sessions.
    pub fn lost_in_restart(&self, index: Index) -> Result<(), String> {
        match self.lasting.range(index..).next() {
            Some((lost, what)) => {
                Err(format!("the restart at {index:?} lacks {what} of {lost:?}, which was applied"))
            }
            None => Ok(()),
        }
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
        self.oracle.check_all(&self.machine).err().map(|breach| self.disagreed(breach))
    }

    /// Checks the removal of TTL znodes, each within `within_ms` after its time.
    pub fn swept(&mut self, within_ms: i64) -> Option<Fact> {
        self.oracle.check_swept(within_ms).err().map(|breach| self.disagreed(breach))
    }

    /// Returns the fact of a breach. The oracle continues with the state: one difference makes others.
    fn disagreed(&mut self, Breach { promise, what }: Breach) -> Fact {
        self.oracle = Oracle::of(&self.machine);
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

    /// Returns the cluster's version, and whether the version is held.
    fn version(&self) -> (u16, bool) {
        (self.machine.version().number, self.machine.is_version_held())
    }

    fn run(&mut self, batch: &Batch, facts: &mut Vec<Fact>) {
        let (takes, ordinal) = (self.machine.takes(batch.ordinal), batch.ordinal);
        if self.oracle.takes(ordinal) != takes {
            let (promise, what) = ("session-order", format!("{ordinal:?} was applied: {takes}"));
            facts.push(self.disagreed(Breach { promise, what }));
        }
        for proposal in batch.proposals.iter().filter(|_| takes) {
            if !self.machine.is_undone_by_restart(&proposal.command) {
                self.lasting.insert(self.applied, proposal.command.name().to_owned());
            }
            let (before, mut heard) = (self.machine.last_zxid(), Heard::default());
            let version = self.version();
            let applied = self.machine.apply_stamped(batch.stamp(), proposal, &mut heard);
            if applied.zxid != before {
                facts.extend(data::logged(proposal, &applied));
            }
            let checked = self.oracle.check((batch.stamp(), proposal), &self.machine, (&applied, &heard.0));
            heard.0.into_iter().for_each(|event| self.facts_of(event, facts));
            let set = data::path_of_acl(&proposal.command);
            facts.extend(set.and_then(|path| data::acl(&self.machine, applied.zxid, path)));
            let (number, is_held) = self.version();
            facts.extend(((number, is_held) != version).then_some(Fact::Version { number, is_held }));
            facts.push(Fact::Committed { zxid: applied.zxid });
            facts.extend(checked.err().map(|breach| self.disagreed(breach)));
        }
    }

    /// Adds the facts about an event of the last command.
    fn facts_of(&self, event: Event, facts: &mut Vec<Fact>) {
        let (machine, at) = (&self.machine, Millis(self.machine.time_ms()));
        match event {
            Event::Opened(session, attachment, timeout_ms) => {
                facts.push(Fact::SessionOpened { session, attachment, timeout_ms, at });
            }
            Event::Attached(session, attachment, timeout_ms) => {
                facts.push(Fact::SessionAttached { session, attachment, timeout_ms, at });
            }
            Event::Ended(session, end) => facts.push(Fact::SessionEnded { session, end, at }),
            Event::Changed { zxid, path, kind, .. } => {
                facts.extend(data::changed(machine, zxid, &path, kind));
                facts.extend(data::acl(machine, zxid, &path));
                facts.extend((path == RULES).then(|| data::rules(machine, zxid)));
            }
            Event::Lock { event, zxid, time_ms, .. } => {
                let queue = self.locks.find(&event.lock).and_then(|lock| queue_fact(lock, &event, zxid, at));
                let event = HistoryEvent::Lock(*event);
                facts.push(Fact::LockEvent(Arc::new(HistoryEntry { time_ms, zxid, event })));
                facts.extend(queue);
            }
            Event::Asked(claim, question) => {
                let lock = self.locks.of_member(&claim.path);
                facts.extend(lock.map(|lock| questioned(lock, claim.token, &question)));
            }
        }
    }
}

/// Returns the change of a queue by an event.
fn queue_fact(lock: Lock, event: &LockEvent, zxid: Zxid, at: Millis) -> Option<Fact> {
    let (token, session, mode) = (event.token, event.session, event.mode);
    Some(match &event.kind {
        LockEventKind::Requested { .. } => Fact::Queued { lock, token, session, mode },
        LockEventKind::Granted { .. } => Fact::Entitled { lock, token, session, zxid, at },
        LockEventKind::Converted => Fact::Converted { lock, token, mode },
        LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
            Fact::Left { lock, token, why: end.reason }
        }
        LockEventKind::Asked { .. } => return None,
    })
}

fn questioned(lock: Lock, token: FencingToken, question: &Question) -> Fact {
    Fact::Questioned { lock, token, asked: Millis(question.asked_ms) }
}

/// Returns the facts that lead to a queue.
fn queued(lock: Lock, queue: &LockView<'_>, zxid: Zxid) -> Vec<Fact> {
    let mut facts = Vec::new();
    for place in queue.holders().chain(queue.waiters()) {
        let (token, session, mode) = (place.token, place.session, place.mode);
        facts.push(Fact::Queued { lock, token, session, mode });
        let granted = place.granted_ms.map(Millis);
        facts.extend(granted.map(|at| Fact::Entitled { lock, token, session, zxid, at }));
        facts.extend(place.asked.map(|question| questioned(lock, token, &question)));
    }
    facts
}

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::Acl;
    use rowlock_proto::lock::Acquire;
    use rowlock_proto::request::Create;
    use rowlock_proto::{CreateMode, Request, SessionId};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Command, Proposal};

    use super::*;
    use crate::history::Book;
    use crate::history::client::{Answer, ZnodeChange};

    const LOCK: &str = "/l";

    fn new() -> Reference {
        Reference::new(Locks::at([LOCK.to_owned()]))
    }

    /// Applies commands as the next entry.
    fn apply(reference: &mut Reference, session: SessionId, commands: Vec<Command>) -> Vec<Fact> {
        let proposal = |command| Proposal {
            origin: Default::default(),
            session,
            attachment: Attachment(1),
            identities: Default::default(),
            command,
        };
        let proposals = commands.into_iter().map(proposal).collect();
        let index = Index(reference.applied().0 + 1);
        let batch = Batch { time_ms: 7 * index.0 as i64, proposals, ..Batch::default() };
        reference.apply(index, Some(&batch.encode())).unwrap()
    }

    fn open(reference: &mut Reference) -> SessionId {
        let opening = Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 1_000 };
        let facts = apply(reference, SessionId::NONE, vec![opening]);
        let opened = facts.iter().find_map(|fact| match fact {
            Fact::SessionOpened { session, .. } => Some(*session),
            _ => None,
        });
        opened.expect("a session was opened")
    }

    fn create(path: &str, mode: CreateMode) -> Command {
        let (path, acl) = (path.to_owned(), Some(Acl::shared_open()));
        Command::Client(Request::Create2(Create { path, data: None, acl, flags: mode.flags() }))
    }

    #[test]
    fn a_write_of_plain_znodes_is_told_with_its_answer_and_what_it_changed() {
        let mut reference = Reference::new(Locks::at(Vec::new()));
        let session = open(&mut reference);
        let writes = ["/data", "/data/a", "/elsewhere"].map(|path| create(path, CreateMode::Persistent));
        let facts = apply(&mut reference, session, writes.into());
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

    #[test]
    fn a_state_leads_to_the_queues_of_its_log() {
        let mut reference = new();
        let sessions = [open(&mut reference), open(&mut reference)];
        let acquire = || {
            let acquire = Acquire { lock_delay_ms: 5_000, ..Acquire::exclusive(LOCK, "p-") };
            Command::Client(Request::Acquire([acquire].into()))
        };
        let before: Vec<Fact> =
            sessions.iter().flat_map(|session| apply(&mut reference, *session, vec![acquire()])).collect();
        let state = reference.machine().clone();
        let (mut later, start) = Reference::after(Locks::at([LOCK.to_owned()]), state, reference.applied());
        let queue = |facts: &[Fact]| {
            let mut book = Book::default();
            facts.iter().for_each(|fact| book.record(fact));
            book.queue(Lock(0)).map(|(token, it)| (token, it.session, it.is_held)).collect::<Vec<_>>()
        };
        let expected = [(sessions[0], true), (sessions[1], false)];
        assert_eq!(
            queue(&start).iter().map(|(_, session, held)| (*session, *held)).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(queue(&start), queue(&before));
        let ends = || vec![Command::ExpireSession { session: sessions[0], attachment: Attachment(1) }];
        let end = apply(&mut reference, SessionId::NONE, ends());
        assert_eq!(apply(&mut later, SessionId::NONE, ends()), end, "the same entry after the same state");
    }

    #[test]
    fn an_ephemeral_znode_that_looks_numbered_takes_no_position() {
        let mut reference = new();
        let session = open(&mut reference);
        let creates = [(LOCK, CreateMode::Persistent), ("/l/member-0000000001", CreateMode::Ephemeral)];
        let creates = creates.map(|(path, mode)| create(path, mode)).into();
        let facts = apply(&mut reference, session, creates);
        assert!(!facts.iter().any(|fact| matches!(fact, Fact::Queued { .. })), "{facts:?}");
    }
}
