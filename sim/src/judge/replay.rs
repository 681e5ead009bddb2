//! Replays the committed entries through the simulator's reference, and compares the digests of snapshots,
//! backups and nodes with the reference's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use rowlock_coordinator::node::moment::rfc3339;
use rowlock_oracle::{Event, Heard};
use rowlock_proto::report::HistoryEntry;
use rowlock_proto::{FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::Machine;
use rowlock_state::command::{Batch, Command};

use super::evidence::{Evidence, Start};
use super::folder::Committed;
use super::folder::Unreadable;
use super::promises::Promises;
use crate::fact_recorder::Reference;
use crate::history::{Fact, Index, Locks, Origin};

/// What the committed entries have shown.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Index of the last entry.
    pub last_index: u64,
    pub entries: u64,
    pub commands: u64,
    /// Sessions opened by the entries.
    pub sessions: u64,
    pub grants: u64,
    /// Time of the first and of the last batch, in milliseconds since 1970.
    pub span_ms: Option<(i64, i64)>,
    /// Last zxid of the state at the start, and of the last state.
    pub zxids: (Zxid, Zxid),
    /// Lock events in the order of the log.
    pub events: Vec<Arc<HistoryEntry>>,
    pub leaders: Vec<Leadership>,
    /// Queue positions of the state at the start.
    pub at_start: Vec<Position>,
    /// Backups, and whether the replay has reached their states.
    pub backups: Vec<(PathBuf, bool)>,
}

/// Beginning of a leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Time of its first batch.
    pub at_ms: i64,
    pub term: u64,
    pub node: NodeId,
}

/// Queue position in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    pub lock: String,
    pub token: FencingToken,
    pub session: SessionId,
    pub requested_ms: i64,
    pub granted_ms: Option<i64>,
}

fn decoded(entry: &Committed) -> Result<Option<Batch>, Unreadable> {
    let Some(payload) = &entry.payload else { return Ok(None) };
    let batch = Batch::decode_shared(payload);
    batch.map(Some).map_err(|error| {
        let index = entry.position.index.0;
        Unreadable(format!(
            "cannot judge entry {index}: {error}; use the release that wrote it, or cut the judged folders"
        ))
    })
}

/// Returns the locks of a state and of the entries after it.
fn locks(mut machine: Machine, evidence: &Evidence) -> Result<Locks, Unreadable> {
    let mut paths: BTreeSet<String> = machine.locks().map(|lock| lock.path().to_owned()).collect();
    for (_, entry) in &evidence.entries {
        let Some(batch) = decoded(entry)? else { continue };
        if !machine.takes(batch.ordinal) {
            continue;
        }
        for proposal in &batch.proposals {
            let mut heard = Heard::default();
            machine.apply_stamped(batch.stamp(), proposal, &mut heard);
            paths.extend(heard.0.into_iter().filter_map(|event| match event {
                Event::Lock { event, .. } => Some(event.lock),
                _ => None,
            }));
        }
    }
    Ok(Locks::at(paths))
}

/// Replays all entries after the start.
///
/// # Errors
/// A snapshot or an entry cannot be decoded.
pub(super) fn run(evidence: &Evidence, promises: &mut Promises) -> Result<Replayed, Unreadable> {
    let start = evidence.state()?;
    let locks = locks(start.clone(), evidence)?;
    let mut replay = Replay::new(evidence, start, locks, promises)?;
    for (_, entry) in &evidence.entries {
        replay.entry(entry, promises)?;
    }
    replay.finish(evidence, promises)
}

struct Replay {
    reference: Reference,
    locks: Locks,
    /// Digests of snapshots by index, with their nodes.
    snapshots: BTreeMap<u64, Vec<(NodeId, u64)>>,
    start_index: u64,
    found: Replayed,
}

impl Replay {
    fn new(
        evidence: &Evidence,
        start: Machine,
        locks: Locks,
        promises: &mut Promises,
    ) -> Result<Replay, Unreadable> {
        let found = Replayed {
            last_index: evidence.start_index,
            zxids: (start.last_zxid(), start.last_zxid()),
            at_start: positions(&start),
            ..Replayed::default()
        };
        let snapshots = digests(evidence)?;
        let (reference, facts) = Reference::after(locks.clone(), start, Index(evidence.start_index));
        promises.start(&facts);
        let start_index = evidence.start_index;
        Ok(Replay { reference, locks, snapshots, start_index, found })
    }

    fn entry(&mut self, entry: &Committed, promises: &mut Promises) -> Result<(), Unreadable> {
        let index = entry.position.index;
        let applied = self.reference.apply(index, entry.payload.as_deref());
        let facts = applied.map_err(Unreadable)?;
        let time_ms = self.reference.machine().time_ms();
        let place = || format!("entry {} at {}", index.0, rfc3339(time_ms));
        for fact in &facts {
            self.count(fact);
            promises.observe(fact, || self.with_path(fact, place()));
        }
        self.found.entries += 1;
        self.found.last_index = index.0;
        if let Some(batch) = decoded(entry)? {
            self.batch(&batch, entry, promises);
        }
        for (node, digest) in self.snapshots.remove(&index.0).unwrap_or_default() {
            let origin = Origin::Install;
            promises.observe(&Fact::Replica { node, index, digest, origin }, || {
                format!("the snapshot of node {node} at entry {}", index.0)
            });
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Batch, entry: &Committed, promises: &mut Promises) {
        self.found.commands += batch.proposals.len() as u64;
        // A batch without a client's command may have no time.
        let at_ms = self.reference.machine().time_ms();
        if at_ms > 0 {
            let first_ms = self.found.span_ms.map_or(at_ms, |(first_ms, _)| first_ms);
            self.found.span_ms = Some((first_ms, at_ms));
            let (term, node) = (entry.position.term, entry.position.leader);
            if self.found.leaders.last().is_none_or(|last| (last.term, last.node) != (term, node)) {
                self.found.leaders.push(Leadership { at_ms, term, node });
            }
        }
        for proposal in &batch.proposals {
            let Command::DigestAt { index, digest } = proposal.command else { continue };
            if (self.start_index..=self.found.last_index).contains(&index) {
                let (node, origin) = (proposal.origin.node, Origin::Apply);
                let fact = Fact::Replica { node, index: Index(index), digest, origin };
                promises.observe(&fact, || {
                    format!("reported by node {node} in entry {}", entry.position.index.0)
                });
            }
        }
    }

    fn count(&mut self, fact: &Fact) {
        match fact {
            Fact::SessionOpened { .. } => self.found.sessions += 1,
            Fact::Entitled { .. } => self.found.grants += 1,
            Fact::LockEvent(entry) => self.found.events.push(entry.clone()),
            _ => {}
        }
    }

    /// Adds the path of the lock that a fact is about.
    fn with_path(&self, fact: &Fact, place: String) -> String {
        match fact {
            Fact::Queued { lock, .. }
            | Fact::Entitled { lock, .. }
            | Fact::Left { lock, .. }
            | Fact::Converted { lock, .. } => format!("{place}, {lock:?} is {}", self.locks.path(*lock)),
            _ => place,
        }
    }

    fn finish(mut self, evidence: &Evidence, promises: &mut Promises) -> Result<Replayed, Unreadable> {
        if let Some(fact) = self.reference.compare() {
            promises.observe(&fact, || "in the last state".to_owned());
        }
        self.found.zxids.1 = self.reference.machine().last_zxid();
        let (first, last) = self.found.zxids;
        for backup in &evidence.backups {
            let is_reached = first < backup.zxid && backup.zxid <= last;
            self.found.backups.push((backup.path.clone(), is_reached));
            if is_reached {
                let differs = !self.reference.has_been(backup.zxid, backup.digest);
                let what = || {
                    let (path, digest) = (backup.path.display(), backup.digest);
                    format!(
                        "the backup {path} has digest {digest:016x} at {}, the log never led to it",
                        backup.zxid
                    )
                };
                promises.record("replica-equality", 1, differs.then(what));
            }
        }
        Ok(self.found)
    }
}

fn positions(machine: &Machine) -> Vec<Position> {
    let of_lock = |queue: rowlock_state::LockView<'_>| {
        let places: Vec<Position> = queue
            .holders()
            .chain(queue.waiters())
            .map(|it| Position {
                lock: queue.path().to_owned(),
                token: it.token,
                session: it.session,
                requested_ms: it.requested_ms,
                granted_ms: it.granted_ms,
            })
            .collect();
        places
    };
    machine.locks().flat_map(of_lock).collect()
}

/// Returns the digests of all snapshots but the start.
fn digests(evidence: &Evidence) -> Result<BTreeMap<u64, Vec<(NodeId, u64)>>, Unreadable> {
    let mut digests: BTreeMap<u64, Vec<(NodeId, u64)>> = BTreeMap::new();
    for log in &evidence.nodes {
        for file in &log.snapshots {
            let Some(id) = file.meta().last_log_id else { continue };
            let is_start = matches!(&evidence.start, Start::Snapshot { node, .. } if *node == log.node)
                && id.index == evidence.start_index;
            if !is_start && id.index > evidence.start_index {
                let state = file.state().map_err(|error| Unreadable(error.to_string()))?;
                digests.entry(id.index).or_default().push((log.node, state.digest()));
            }
        }
    }
    Ok(digests)
}
