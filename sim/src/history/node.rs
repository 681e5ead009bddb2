//! Facts about the nodes of a simulated cluster, reported by `rowlock_coordinator`'s observer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::{NodeId, SessionId};
use rowlock_world::time::Nanos;

use super::Index;

/// A position in the log. Equal positions hold the same entry on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Raft term of the leader that made the entry.
    pub term: u64,
    pub leader: NodeId,
    pub index: Index,
}

/// Members of a cluster by one entry of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// Sets of voters: a decision needs a majority of each.
    pub voters: Vec<BTreeSet<NodeId>>,
    pub learners: BTreeSet<NodeId>,
}

/// End of a node's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// The node shut down in order, on request.
    Stopped,
    /// The node stopped by itself.
    Failed,
    /// Like kill -9: the operating system keeps written data.
    Killed,
    /// The power failed: unflushed writes may be lost.
    PowerLost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFact {
    Started,
    Ended {
        how: Down,
    },
    /// The process continues after a stall of this length.
    Resumed {
        after: Duration,
    },
    /// The disk holds less than before: a fault emptied the disk or restored an older copy.
    Forgot,
    /// The node has read its log from disk: entries up to `purged` are gone, the following entries are
    /// reported as [`NodeFact::Appended`] up to `last`. `vote` is the last vote on disk. A node that does not
    /// remember may have lost entries that it acknowledged before their flush.
    Opened {
        vote: Option<(u64, NodeId)>,
        purged: Option<Position>,
        last: Option<Position>,
        remembers: bool,
    },
    /// The entry that the node appends next is a membership: one set of voters, or two while the voters
    /// change, and the members without a vote.
    Members {
        entry: Position,
        members: Arc<Members>,
    },
    /// The node has added an entry to its log. `hash`: of the payload (0 without a payload).
    Appended {
        entry: Position,
        hash: u64,
    },
    /// The node acknowledges all entries up to this position to a leader.
    Acknowledged {
        upto: Position,
    },
    /// The node has removed the entries after this index.
    Truncated {
        after: Index,
    },
    /// The node's state is now the state after this entry.
    Applied {
        entry: Position,
        hash: u64,
        digest: u64,
    },
    /// A snapshot replaced the state: at start, or sent by the leader. `None`: a snapshot of an empty log.
    Installed {
        entry: Option<Position>,
        digest: u64,
    },
    /// The node has voted for this candidate, on disk.
    Voted {
        term: u64,
        candidate: NodeId,
    },
    Leads {
        term: u64,
    },
    /// The leader of the term confirms that these sessions live: the leader restarted their timers at
    /// `touched`, and a quorum has acknowledged messages that the leader sent at `since` or later.
    Confirms {
        term: u64,
        since: Nanos,
        touched: Nanos,
        sessions: Vec<SessionId>,
    },
    /// The leader of the term has decided that the session has timed out. The leader's last contact to a
    /// quorum was at `contact`.
    Expires {
        session: SessionId,
        term: u64,
        contact: Nanos,
    },
}

/// Returns a hash of an entry's payload.
pub fn payload_hash(payload: Option<&[u8]>) -> u64 {
    let Some(payload) = payload else { return 0 };
    payload.chunks(8).fold(0xcbf2_9ce4_8422_2325_u64 ^ payload.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let mixed = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    })
}
