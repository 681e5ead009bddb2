//! Reads what a node's data folder shows of the past: the log with its votes, commits and cuts, and the
//! snapshots. Takes no lock and changes nothing, so the node may run meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use bytes::Bytes;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_wal::log::record::{Checkpoint, Record};
use rowlock_wal::offline::{DumpItem, dump};
use rowlock_wal::{Entry, LogId, Payload, SnapshotFile, Vote, offline};

use crate::history::Index;
use crate::history::node::{NodeFact, Position, payload_hash};

/// Attempts to read a folder whose node writes and removes files meanwhile.
const TRIES: u32 = 4;

/// Entry that a node knew as committed.
#[derive(Clone, Debug)]
pub struct Committed {
    pub position: Position,
    pub payload: Option<Bytes>,
}

impl Committed {
    pub fn hash(&self) -> u64 {
        payload_hash(self.payload.as_deref())
    }
}

/// Log and snapshots of a node.
#[derive(Debug)]
pub struct NodeLog {
    pub folder: PathBuf,
    pub node: NodeId,
    pub cluster: String,
    pub cluster_id: Option<ClusterId>,
    /// Changes of the log and votes, in the order of their writes.
    pub steps: Vec<NodeFact>,
    /// Entries that the node knew as committed, by index.
    pub committed: BTreeMap<u64, Committed>,
    /// Last entries, which the node did not know as committed.
    pub uncommitted: usize,
    /// A snapshot of another node has replaced entries, or may have before the log's first record.
    pub may_have_installed: bool,
    pub snapshots: Vec<SnapshotFile>,
}

pub(super) fn position(id: LogId) -> Position {
    let LogId { leader_id, index } = id;
    Position { term: leader_id.term, leader: NodeId(leader_id.node_id), index: Index(index) }
}

impl NodeLog {
    /// Reads the folder of a node.
    ///
    /// # Errors
    /// The folder cannot be read, is damaged, or is of another build.
    pub fn read(folder: &Path) -> Result<NodeLog, Unreadable> {
        for _ in 1..TRIES {
            if let Ok(log) = Self::try_read(folder) {
                return Ok(log);
            }
        }
        Self::try_read(folder).map_err(|why| unreadable(folder, why))
    }

    fn try_read(folder: &Path) -> Result<NodeLog, String> {
        let (identity, cluster_id) = offline::owner(folder).map_err(|error| error.to_string())?;
        let mut replay = Replay::default();
        let walked = dump(folder, |item| {
            let why = match item {
                DumpItem::Segment { node: Ok(node), .. } if node == identity.node.0 => return Ok(()),
                DumpItem::Segment { file, node: Ok(node), .. } => format!("{file} is of node {node}"),
                DumpItem::Segment { file, node: Err(why), .. } => format!("{file}: {why}"),
                DumpItem::Record { record: Ok(record), .. } => {
                    replay.take(record);
                    return Ok(());
                }
                DumpItem::Record { file, offset, record: Err(why) } => {
                    format!("{file} at offset {offset}: {why}")
                }
                DumpItem::Damage { file, offset, what } => format!("{file} at offset {offset}: {what}"),
                DumpItem::Torn { .. } => return Ok(()),
            };
            Err(io::Error::other(why))
        });
        walked.map_err(|error| format!("its log: {error}"))?;
        let snapshots = offline::snapshots(folder, &identity).map_err(|error| error.to_string())?;
        let uncommitted = replay.entries.keys().filter(|index| !replay.committed.contains_key(index)).count();
        let Replay { steps, committed, may_have_installed, .. } = replay;
        let (folder, node, cluster) = (folder.to_owned(), identity.node, identity.cluster);
        Ok(NodeLog {
            folder,
            node,
            cluster,
            cluster_id,
            steps,
            committed,
            uncommitted,
            may_have_installed,
            snapshots,
        })
    }
}

/// Log during the walk through its records.
#[derive(Default)]
struct Replay {
    has_begun: bool,
    steps: Vec<NodeFact>,
    entries: BTreeMap<u64, Committed>,
    committed: BTreeMap<u64, Committed>,
    vote: Option<Vote>,
    may_have_installed: bool,
}

impl Replay {
    fn take(&mut self, record: Record) {
        match record {
            Record::Checkpoint(checkpoint) if !self.has_begun => self.begin(checkpoint),
            // A later checkpoint repeats the state of the log.
            Record::Checkpoint(Checkpoint { committed, .. }) => self.commit(committed),
            Record::Entry(Entry { log_id, payload }) => self.append(log_id, payload),
            Record::Vote(vote) => self.vote(vote),
            Record::Committed(upto) => self.commit(Some(upto)),
            Record::Truncate(after) => {
                let keep = after.map_or(0, |after| after.index + 1);
                self.entries.split_off(&keep);
                self.steps.push(NodeFact::Truncated { after: Index(keep.saturating_sub(1)) });
            }
            Record::Purge(upto) => {
                let last = self.entries.last_key_value().map(|(index, _)| *index);
                self.may_have_installed |= last.is_none_or(|last| last < upto.index);
                self.entries = self.entries.split_off(&(upto.index + 1));
            }
            Record::Mark(_) => {}
        }
        self.has_begun = true;
    }

    fn begin(&mut self, checkpoint: Checkpoint) {
        let Checkpoint { vote, purged, last, .. } = checkpoint;
        self.vote = vote;
        let vote = vote.map(|vote| (vote.leader_id.term, NodeId(vote.leader_id.node_id)));
        self.may_have_installed = purged.is_some();
        let (purged, last) = (purged.map(position), last.map(position));
        self.steps.push(NodeFact::Opened { vote, purged, last, remembers: true });
    }

    fn append(&mut self, id: LogId, payload: Payload) {
        let payload = if let Payload::Normal(bytes) = payload { Some(bytes) } else { None };
        let entry = Committed { position: position(id), payload };
        self.steps.push(NodeFact::Appended { entry: entry.position, hash: entry.hash() });
        self.entries.insert(id.index, entry);
    }

    fn vote(&mut self, vote: Vote) {
        if self.vote.is_none_or(|last| last.leader_id != vote.leader_id) {
            let (term, candidate) = (vote.leader_id.term, NodeId(vote.leader_id.node_id));
            self.steps.push(NodeFact::Voted { term, candidate });
        }
        self.vote = Some(vote);
    }

    fn commit(&mut self, upto: Option<LogId>) {
        let Some(upto) = upto else { return };
        let first = self.committed.last_key_value().map_or(0, |(index, _)| index + 1);
        if first > upto.index {
            return;
        }
        let news = self.entries.range(first..=upto.index).map(|(index, entry)| (*index, entry.clone()));
        self.committed.extend(news);
    }
}

/// A folder or file that cannot be judged, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub(super) String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn unreadable(path: &Path, why: impl fmt::Display) -> Unreadable {
    Unreadable(format!("cannot judge {}: {why}", path.display()))
}
