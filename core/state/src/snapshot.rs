//! Snapshots: the whole state as bytes, written during further applies, and read back.
//!
//! The bytes are blocks of records ([`record`], [`block`]): counters, the last entry's number, sessions, the
//! znodes from the root down, each behind its parent, every distinct ACL once, the sessions' kept outcomes,
//! the queues of locks, and finally the digest, which the loaded state must have again. Writing needs memory
//! for one block and the ACLs, reading for one block in addition to the state.

mod block;
mod load;
mod record;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use rowlock_proto::acl::Acl;

use crate::command::Ordinal;
use crate::dedup::OutcomeRecord;
use crate::layout::Layout;
use crate::locks::Key;
use crate::machine::Machine;
use crate::sessions::Host;
use crate::version::{ClusterVersion, FIRST, Upgrade};
use crate::znode::Znode;
use block::BlockWriter;
use record::Row;

/// Version of a snapshot's bytes, independent of the cluster's version in the snapshot.
pub const SNAPSHOT_VERSION: u16 = block::VERSION;

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
    #[error("the snapshot has format version {0}, this node knows {version}", version = block::VERSION)]
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
        load::load(input)
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
