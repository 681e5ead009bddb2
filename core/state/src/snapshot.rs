//! Snapshots: the whole state as bytes, written during further applies, and read back.
//!
//! The bytes are a magic, the format version, the cluster's version with its fingerprint ([`Layout`]), then
//! blocks of `length, CRC, bytes`, each with whole records ([`Row`]): counters, the last entry's number,
//! sessions, the znodes from the root down, each behind its parent, every distinct ACL once, the sessions'
//! kept outcomes, the queues of locks, and finally the digest, which the loaded state must have again.
//! Writing needs memory for one block and the ACLs, reading for one block in addition to the state.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use bytes::Bytes;
use rowlock_proto::acl::Acl;
use rowlock_proto::{SessionId, Zxid};
use serde::{Deserialize, Serialize};

use crate::codec::{BINCODE, from_bincode};
use crate::command::{Attachment, Ordinal, Proof};
use crate::load::load;
use crate::locks::{Contender, Key, Question};
use crate::machine::Machine;
use crate::outcome::OutcomeRecord;
use crate::sessions::Host;
use crate::version::{ClusterVersion, FIRST, Layout, NewCluster, Upgrade};
use crate::znode::{Meta, Znode};

/// Version of a snapshot's bytes, independent of the cluster's version in the snapshot.
pub const SNAPSHOT_VERSION: u16 = VERSION;

/// The state at one moment, unaffected by later applies.
///
/// Freezing is cheap. While a frozen state exists, apply copies the parts that change.
#[derive(Clone, Debug)]
pub struct Frozen {
    machine: Machine,
}

/// Reason why bytes are not a snapshot readable by this version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Reading failed, or the snapshot ends too early.
    #[error("the snapshot cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The input lacks the magic bytes of a snapshot.
    #[error("this is not a Rowlock snapshot")]
    NotASnapshot,
    /// The snapshot has another format version.
    #[error("the snapshot has format version {0}, this node knows {version}", version = VERSION)]
    Version(u16),
    /// A build with another layout of the same version wrote the snapshot.
    #[error(
        "the snapshot is of another build: version {version} of the cluster's state has the fingerprint {found} in it"
    )]
    OtherBuild { version: u16, found: Layout },
    /// The cluster has changed to a version unknown to this release.
    #[error("the snapshot is of version {} of the cluster's state: run release {} or a later one", .0.number, .0.release.escape_debug())]
    Newer(ClusterVersion),
    /// The structure is right, but the state differs from the written one.
    #[error("the snapshot is damaged: it was written with the digest {written:#018x}, and has {found:#018x}")]
    Digest {
        /// Digest stored in the snapshot.
        written: u64,
        found: u64,
    },
    /// A checksum or the structure is wrong.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
}

impl Machine {
    /// Returns the current state, for another thread to write.
    pub fn freeze(&self) -> Frozen {
        Frozen { machine: self.clone() }
    }

    /// Reads the output of [`Frozen::encode`], and nothing behind it.
    pub fn decode(input: &mut impl io::Read) -> Result<Machine, SnapshotError> {
        load(input)
    }
}

impl Frozen {
    /// Borrows the frozen state for reading.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Writes the snapshot. The caller flushes.
    pub fn encode(&self, out: &mut impl io::Write) -> io::Result<()> {
        self.write_all(BlockWriter::new(out, self.machine.version().number)?)
    }

    fn write_all(&self, mut blocks: BlockWriter<'_>) -> io::Result<()> {
        let machine = &self.machine;
        blocks.write(&Row::Counters { last_zxid: machine.last_zxid, time_ms: machine.time_ms })?;
        if machine.last_entry != Ordinal::default() {
            blocks.write(&Row::LastEntry(machine.last_entry))?;
        }
        if let Some(cluster) = machine.cluster {
            blocks.write(&Row::Cluster(cluster))?;
        }
        write_version(&mut blocks, machine)?;
        for (id, session) in machine.sessions() {
            let (proof, timeout_ms, attachment) = (session.proof, session.timeout_ms, session.attachment);
            blocks.write(&Row::Session { id, proof, timeout_ms, attachment })?;
            if session.longest_timeout_ms() != timeout_ms {
                let longest_ms = session.longest_timeout_ms();
                blocks.write(&Row::LongestTimeout { session: id, longest_ms })?;
            }
            if session.host() != Host::UNKNOWN {
                blocks.write(&Row::OpenedFrom { session: id, host: session.host() })?;
            }
        }
        let (mut acls, mut znodes) = (BTreeMap::new(), 1);
        write_znode(&mut blocks, &mut acls, 0, "", machine.tree.root())?;
        // Iterators on the way down. A loop instead of recursion: a tree may be deeper than the stack.
        let mut below = vec![machine.tree.root().children.iter()];
        while let Some(siblings) = below.last_mut() {
            match siblings.next() {
                Some((name, id)) => {
                    let znode = machine.tree.node(*id);
                    znodes += 1;
                    write_znode(&mut blocks, &mut acls, below.len() as u32, name, znode)?;
                    below.push(znode.children.iter());
                }
                None => drop(below.pop()),
            }
        }
        assert_eq!(znodes, machine.tree.totals().znodes, "each znode is written exactly once");
        write_outcomes(&mut blocks, machine)?;
        write_locks(&mut blocks, machine)?;
        blocks.write(&Row::End { digest: machine.digest() })?;
        blocks.finish()
    }
}

fn write_version(blocks: &mut BlockWriter<'_>, machine: &Machine) -> io::Result<()> {
    let Upgrade { version, held, rehearsed, mistaken: _ } = &machine.upgrade;
    if version.number != FIRST || *held {
        blocks.write(&Row::Version { version: version.clone(), held: *held })?;
    }
    if *rehearsed > 0 {
        blocks.write(&Row::Rehearsed(*rehearsed))?;
    }
    Ok(())
}

fn write_outcomes(blocks: &mut BlockWriter<'_>, machine: &Machine) -> io::Result<()> {
    for (session, open) in machine.sessions() {
        if open.outcomes.acked() == 0 && open.outcomes.is_empty() {
            continue;
        }
        blocks.write(&Row::Acked { session, acked: open.outcomes.acked() })?;
        for (id, stored) in open.outcomes.iter() {
            blocks.write(&Row::Outcome(OutcomeRecord { session, id, stored }))?;
        }
    }
    Ok(())
}

fn write_locks(blocks: &mut BlockWriter<'_>, machine: &Machine) -> io::Result<()> {
    let mut places = 0;
    for (path, lock) in machine.locks.iter() {
        places += lock.len() as u64;
        for (Key { czxid, path: queue_znode }, contender) in lock.contenders() {
            let name = rowlock_proto::path::name(queue_znode);
            let (contender, asked) = (contender.clone(), contender.asked.as_deref());
            blocks.write(&Row::Contender {
                lock: path.into(),
                czxid: *czxid,
                name: name.into(),
                contender,
            })?;
            if let Some(question) = asked {
                blocks.write(&Row::Asked(Cow::Borrowed(question)))?;
            }
        }
        if lock.delayed_until_ms() != 0 {
            blocks.write(&Row::Delay { lock: path.into(), until_ms: lock.delayed_until_ms() })?;
        }
    }
    let (_, holders, waiters) = machine.locks.counts();
    assert_eq!(places, holders + waiters, "each place in a queue is written exactly once");
    Ok(())
}

fn write_znode<'a>(
    blocks: &mut BlockWriter<'_>,
    acls: &mut BTreeMap<&'a [Acl], u32>,
    depth: u32,
    name: &str,
    znode: &'a Znode,
) -> io::Result<()> {
    let entries = znode.acl.entries();
    let acl = match acls.get(entries) {
        Some(acl) => *acl,
        None => {
            let acl = acls.len() as u32;
            acls.insert(entries, acl);
            blocks.write(&Row::Acl(entries.into()))?;
            acl
        }
    };
    blocks.write(&Row::Znode { depth, name: name.into(), data: znode.data().cloned(), acl, meta: znode.meta })
}

/// Format version behind the magic, since release 0.2.0. No checksum covers the version; two versions must
/// differ by two bits: the next ones are 1, 4 and 7.
const VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"ROWLSNAP";
/// Size from which the writer writes a block. One record may make a block larger.
const BLOCK_BYTES: usize = 64 << 10;
/// Limit of a record's size; a greater length is damage.
const BLOCK_MAX_BYTES: usize = 128 << 20;

/// Collects records into blocks. Not generic, nor is the reader: otherwise each crate with a type of its own
/// would contain the code of all records.
struct BlockWriter<'a> {
    out: &'a mut dyn Write,
    block: Vec<u8>,
}

impl<'a> BlockWriter<'a> {
    /// Begins the snapshot of a state in this version of the cluster.
    fn new(out: &'a mut dyn Write, cluster_version: u16) -> io::Result<Self> {
        assert!(cluster_version > 0, "a state is of a version");
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&cluster_version.to_le_bytes())?;
        out.write_all(&Layout::of_version(cluster_version).unwrap_or_default().0.to_le_bytes())?;
        Ok(BlockWriter { out, block: Vec::with_capacity(BLOCK_BYTES * 2) })
    }

    fn write(&mut self, record: &Row<'_>) -> io::Result<()> {
        bincode::serde::encode_into_std_write(record, &mut self.block, BINCODE).map_err(io::Error::other)?;
        if self.block.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    fn finish(mut self) -> io::Result<()> {
        if self.block.is_empty() { Ok(()) } else { self.write_block() }
    }

    fn write_block(&mut self) -> io::Result<()> {
        assert!(!self.block.is_empty(), "a block without records would be taken for damage");
        let length =
            u32::try_from(self.block.len()).ok().filter(|length| *length as usize <= BLOCK_MAX_BYTES);
        let length = length.ok_or_else(|| io::Error::other("a record is too large for a snapshot"))?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(&self.block).to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }
}

/// Reads records from blocks.
pub(crate) struct BlockReader<'a> {
    input: &'a mut dyn Read,
    block: Vec<u8>,
    /// Number of decoded bytes of `block`.
    read: usize,
    /// The cluster's version from the header, which no checksum covers.
    pub(crate) cluster_version: u16,
}

impl<'a> BlockReader<'a> {
    pub(crate) fn new(input: &'a mut dyn Read) -> Result<Self, SnapshotError> {
        let magic: [u8; 8] = read_array(input)?;
        if magic != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        let version = u16::from_le_bytes(read_array(input)?);
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let cluster_version = u16::from_le_bytes(read_array(input)?);
        let found = Layout(u32::from_le_bytes(read_array(input)?));
        // The records of a later version name the release that reads the version.
        if Layout::of_version(cluster_version).is_some_and(|ours| ours != found) {
            return Err(SnapshotError::OtherBuild { version: cluster_version, found });
        }
        Ok(BlockReader { input, block: Vec::new(), read: 0, cluster_version })
    }

    pub(crate) fn next(&mut self) -> Result<Row<'static>, SnapshotError> {
        if self.read == self.block.len() {
            self.read_block()?;
        }
        let (record, read) = from_bincode(&self.block[self.read..])
            .map_err(|error| SnapshotError::Damaged(format!("a record does not decode: {error}")))?;
        self.read += read;
        assert!(self.read <= self.block.len(), "a record ends in its block");
        Ok(record)
    }

    /// Returns whether the block ends here, as required behind the last record.
    pub(crate) fn is_at_block_end(&self) -> bool {
        self.read == self.block.len()
    }

    fn read_block(&mut self) -> Result<(), SnapshotError> {
        let length = u32::from_le_bytes(read_array(self.input)?) as usize;
        let crc = u32::from_le_bytes(read_array(self.input)?);
        if length == 0 || length > BLOCK_MAX_BYTES {
            return Err(SnapshotError::Damaged(format!("a block claims {length} bytes")));
        }
        self.read = 0;
        self.block.clear();
        // `take` instead of a buffer of this length: memory is used only for existing bytes.
        (&mut *self.input).take(length as u64).read_to_end(&mut self.block)?;
        if self.block.len() < length {
            return Err(SnapshotError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        if crc32fast::hash(&self.block) != crc {
            return Err(SnapshotError::Damaged("the checksum of a block is wrong".to_owned()));
        }
        Ok(())
    }
}

fn read_array<const N: usize>(input: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Records of a snapshot. The order of records belongs to the format: see [`Frozen::encode`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Row<'a> {
    Counters {
        last_zxid: Zxid,
        time_ms: i64,
    },
    /// Rising ids. The ephemerals follow from the znodes.
    Session {
        id: SessionId,
        proof: Proof,
        timeout_ms: u32,
        attachment: Attachment,
    },
    /// Has the next number, from 0; precedes the first znode with this ACL.
    Acl(Cow<'a, [Acl]>),
    /// Follows its parent, whose depth is one less; siblings in order of their names. The root has depth 0.
    Znode {
        depth: u32,
        name: Cow<'a, str>,
        data: Option<Bytes>,
        acl: u32,
        meta: Meta,
    },
    End {
        digest: u64,
    },
    /// Numbers of writes that the session's client may repeat; follows the znodes.
    Acked {
        session: SessionId,
        acked: u64,
    },
    /// Follows `Acked` of its session, in order of ids.
    Outcome(OutcomeRecord),
    /// A position in the queue of the lock at `lock`; follows the znodes, in the order of the queue.
    Contender {
        lock: Cow<'a, str>,
        czxid: Zxid,
        name: Cow<'a, str>,
        contender: Contender,
    },
    /// Time before which no position gets the lock; follows the znodes.
    Delay {
        lock: Cow<'a, str>,
        until_ms: i64,
    },
    /// Follows the counters. Absent before the first numbered entry.
    LastEntry(Ordinal),
    /// Follows its session, which has a shorter timeout now.
    LongestTimeout {
        session: SessionId,
        longest_ms: u32,
    },
    /// Follows the counters. Absent before the cluster has an id.
    Cluster(NewCluster),
    /// Follows the counters, in front of all records that earlier versions do not know. Absent in the first
    /// version.
    Version {
        version: ClusterVersion,
        held: bool,
    },
    /// Follows `Version`, since the version of rehearsals.
    Rehearsed(u64),
    /// Follows its session. Absent if unknown.
    OpenedFrom {
        session: SessionId,
        host: Host,
    },
    /// The question to the position of the `Contender` right before.
    Asked(Cow<'a, Question>),
}

#[cfg(test)]
mod tests {
    use rowlock_world::samples::missing;

    use super::{BlockReader, Row};

    /// A record without a sample could change without a change of the fingerprint.
    #[test]
    fn the_golden_snapshots_have_a_record_of_each_kind() {
        let mut found = Vec::new();
        for text in
            [include_str!("../testdata/snapshot.golden"), include_str!("../testdata/snapshot_locks.golden")]
        {
            let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
            let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            let mut input = bytes.as_slice();
            let mut rows = BlockReader::new(&mut input).expect("a snapshot of this build");
            loop {
                found.push(rows.next().expect("a record"));
                if let Some(Row::End { .. }) = found.last() {
                    break;
                }
            }
        }
        assert_eq!(missing(&found), ["Rehearsed"], "a snapshot of the rehearsed version alone has it");
    }
}
