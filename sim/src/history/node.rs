//! What the nodes of a simulated cluster did, as reported by `rowlock_coordinator`'s observer.

use std::time::Duration;

use rowlock_proto::{NodeId, SessionId};
use rowlock_world::time::Nanos;

use super::Index;

/// A position in the log: equal ones hold the same entry, on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Raft term of the leader that made the entry.
    pub term: u64,
    pub leader: NodeId,
    pub index: Index,
}

/// How a node's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// It stopped in good order.
    Stopped,
    /// Like kill -9: what was written is kept by the operating system.
    Killed,
    /// The power failed: unflushed writes may be lost.
    PowerLost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFact {
    Started,
    /// Its process is gone.
    Ended {
        how: Down,
    },
    /// Its process continues, having stalled for this long.
    Resumed {
        after: Duration,
    },
    /// Its disk holds less than it did: it was emptied, or an older copy was put back.
    Forgot,
    /// Its log was read from disk: it begins after this position. Its entries follow as
    /// [`NodeFact::Appended`]. It ends with `last`, and the last vote is the one told.
    Opened {
        vote: Option<(u64, NodeId)>,
        purged: Option<Position>,
        last: Option<Position>,
    },
    /// An entry was taken into its log; `hash`: of the payload (0 without one).
    Appended {
        entry: Position,
        hash: u64,
    },
    /// It tells a leader that its disk has everything up to this entry.
    Acknowledged {
        upto: Position,
    },
    /// Its log's entries after this index were removed.
    Truncated {
        after: Index,
    },
    /// Its state is now the one after this entry.
    Applied {
        entry: Position,
        hash: u64,
        digest: u64,
    },
    /// A snapshot replaced its state: at start, or sent by the leader. `None`: one of an empty log.
    Installed {
        entry: Option<Position>,
        digest: u64,
    },
    /// It has voted for this candidate, on disk.
    Voted {
        term: u64,
        candidate: NodeId,
    },
    Leads {
        term: u64,
    },
    /// As leader of the term it confirms that these sessions live: it restarted their timers at `touched`,
    /// and a quorum has acknowledged what it sent at `since` or later.
    Confirms {
        term: u64,
        since: Nanos,
        touched: Nanos,
        sessions: Vec<SessionId>,
    },
    /// As leader of the term it has decided that the session's time has passed. Its last contact to a quorum
    /// was at `contact`.
    Expires {
        session: SessionId,
        term: u64,
        contact: Nanos,
    },
}

/// A number of an entry's payload.
pub fn payload_hash(payload: Option<&[u8]>) -> u64 {
    let Some(payload) = payload else { return 0 };
    payload.chunks(8).fold(0xcbf2_9ce4_8422_2325_u64 ^ payload.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let mixed = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    })
}
