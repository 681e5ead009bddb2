//! The log format: proposals that the leader batches into log entries and every replica applies in order.
//!
//! A log entry is one [`Batch`]: the commands that waited together.

use std::sync::Arc;

use rowlock_proto::acl::Id;
use rowlock_proto::lock::Claim;
use rowlock_proto::request::{Op, Request};
use rowlock_proto::{ClusterId, ErrorCode, FencingToken, NodeId, SessionId, Zxid};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::shared_map::Slot;
use crate::version::ClusterVersion;

/// Counts the connections that a session has been attached to. The state refuses proposals of an older
/// attachment (`SessionMoved`): a connection that the client has left cannot act any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attachment(pub u64);

/// Origin of a proposal. Only the origin node answers the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// The node that the client is connected to.
    pub node: NodeId,
    /// Random number of the node's process: a restarted node ignores proposals of the process before.
    pub incarnation: u64,
    /// Counts the proposals of that process, from 1.
    pub request: u64,
}

/// A command with its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub origin: Origin,
    /// Session that the proposal acts for; [`SessionId::NONE`] for the cluster's own commands and
    /// `OpenSession`.
    pub session: SessionId,
    /// Attachment of the session, as the sender knows the session.
    pub attachment: Attachment,
    /// The sender's identities for ACL checks, without `world:anyone`, an identity of every client. All
    /// proposals of a connection share one list.
    pub identities: Arc<[Id]>,
    pub command: Command,
}

/// A change of the replicated state: a client's request, or one of the cluster's own commands.
///
/// Invariant: bincode numbers the variants by their order. `codec` encodes the last two itself, and serde
/// skips them: keep them last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Changes nothing: a new leader's first entry, or an entry that a node waits for. Takes no zxid.
    Noop,
    /// Opens a session. The session id consists of this command's zxid and the origin node.
    OpenSession {
        /// Derived from the password. The origin node draws the password and sends the password to the client
        /// alone.
        proof: Proof,
        timeout_ms: u32,
    },
    /// Moves a session to a new connection and raises its attachment. Takes no zxid.
    Reattach {
        /// The session's attachment that the client's node knew at the request; `None` accepts any. The state
        /// refuses the command (`SessionMoved`) if the attachment has changed meanwhile: a late command takes
        /// no session away from a client that has moved on to another node.
        from: Option<Attachment>,
        session: SessionId,
        /// Proof of the session's password.
        proof: Proof,
        /// Newly negotiated timeout, milliseconds.
        timeout_ms: u32,
    },
    /// Ends a session. Proposed by the leader after a whole timeout without a keepalive, or by a superuser,
    /// whose identities the proposal has. No effect if the session has been attached again.
    ExpireSession {
        session: SessionId,
        /// The attachment that the decision was about.
        attachment: Attachment,
    },
    /// Deletes a container or TTL znode that is still idle and childless. Proposed by the leader's sweep.
    Reap { path: String },
    /// Writes `/zookeeper/config` after a change of the membership.
    Configure {
        /// The text that ZooKeeper clients read.
        config: String,
    },
    /// Grants locks whose lock-delay is over and revokes holds beyond their maximum. Proposed by the leader's
    /// sweep.
    LockDue {
        /// Path of the lock's znode.
        lock: String,
    },
    /// Marks an entry behind which every node records its digest. Changes nothing, takes no zxid.
    CompareDigests,
    /// Reports the digest of the origin's state behind a mark. Changes nothing, takes no zxid.
    DigestAt {
        /// Log index of the mark's entry.
        index: u64,
        digest: u64,
    },
    /// Replaces a proposal that the leader has refused: the price was too high ([`crate::Machine::price`]),
    /// or memory was short. The origin node answers the client with this code.
    Refused(ErrorCode),
    /// Sets the cluster's id, drawn by the first leader. Only the first one counts. Takes no zxid.
    Found { cluster: ClusterId },
    /// Ends the grace of a restored cluster: clients may open sessions. Takes no zxid.
    EndGrace,
    /// Raises the cluster's version to one that all members know. An older version changes nothing, nor does
    /// any version while an operator holds the present one. Takes no zxid. Every release reads this command:
    /// an older release learns from the command to stop, and which release to run.
    RaiseVersion { to: ClusterVersion },
    /// Sets whether the leader waits for an operator before a raise of the version. Takes no zxid.
    HoldVersion { hold: bool },
    /// Changes a znode only while the claim, of any session, holds its lock. The outcome is the outcome of a
    /// multi of a check and the change.
    Fenced { claim: Claim, change: Op },
    /// Raises the zxid, so that all later fencing tokens exceed `above`: resources know tokens of another
    /// service. A smaller number changes nothing. Takes no zxid.
    RaiseTokens { above: FencingToken },
    /// Ends all sessions, raises the zxid beyond all tokens that voters may have forgotten in a power loss,
    /// and begins a grace: clients open no sessions. First entry of a leader whose voters have forgotten
    /// entries.
    Restart {
        /// Id for a cluster without an id.
        cluster: ClusterId,
        /// Shortest grace in milliseconds.
        grace_ms: u32,
    },
    /// A write that takes effect once in its session, however often the write arrives. Repeated arrivals take
    /// no zxid.
    #[serde(skip)]
    Tagged {
        /// Number of the write in the session.
        id: u64,
        /// The client knows the outcomes up to this number.
        acked: u64,
        /// The write ([`Command::is_write`]); never a tagged command.
        command: Box<Command>,
    },
    /// A client's request as received, of an opcode that [is logged](rowlock_proto::OpCode::is_logged). The
    /// state answers with the request's [`Response`](rowlock_proto::response::Response). The proposal has the
    /// session and the identities; the request has all other input.
    #[serde(skip)]
    Client(Request),
}

fn path_in(op: &mut Op) -> &mut String {
    match op {
        Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) | Op::CreateTtl(create, _) => {
            &mut create.path
        }
        Op::SetData(set) => &mut set.path,
        Op::Delete { path, .. } | Op::Check { path, .. } => path,
    }
}

/// Takes the first path out of a logged request.
fn take_path_of(request: &mut Request) -> Option<String> {
    let path = match request {
        Request::Create(create)
        | Request::Create2(create)
        | Request::CreateContainer(create)
        | Request::CreateTtl(create, _) => &mut create.path,
        Request::Delete { path, .. } | Request::Sync(path) => path,
        Request::SetData(set) => &mut set.path,
        Request::SetAcl(set) => &mut set.path,
        Request::Multi(ops) => path_in(ops.first_mut()?),
        Request::Abandon(all) => &mut all.first_mut()?.lock,
        Request::Ask(ask) => &mut ask.lock,
        // Copied: the path is a slice of an entry.
        Request::Acquire(all) => return Some(all.first()?.lock.to_string()),
        Request::Release(claims) | Request::Verify(claims) => return Some(claims.first()?.path.to_string()),
        Request::Convert { claim, .. } | Request::ForceRelease(claim) => return Some(claim.path.to_string()),
        _ => return None,
    };
    Some(std::mem::take(path))
}

impl Command {
    /// Returns the command for a client's request. `None` if the request does not go through the log, or is a
    /// tagged request other than a write.
    pub fn of_client(request: Request) -> Option<Command> {
        match request {
            Request::Tagged { id, acked, request } if request.opcode().may_be_tagged() => {
                Some(Command::Client(*request).tagged(id, acked))
            }
            request if request.opcode().is_logged() => Some(Command::Client(request)),
            _ => None,
        }
    }

    /// Returns the write with its number.
    #[must_use]
    pub fn tagged(self, id: u64, acked: u64) -> Command {
        assert!(self.is_write(), "a number belongs to a write");
        Command::Tagged { id, acked, command: Box::new(self) }
    }

    /// Returns whether a session may keep the outcome: true for clients' writes, false for the cluster's own
    /// commands.
    pub fn is_write(&self) -> bool {
        match self {
            Command::Client(request) => request.opcode().may_be_tagged(),
            Command::Fenced { .. } | Command::Refused(_) => true,
            _ => false,
        }
    }

    /// Returns the command without its tag.
    pub fn untagged(&self) -> &Command {
        match self {
            Command::Tagged { command, .. } => command,
            other => other,
        }
    }

    /// Returns the client's request, tagged or not.
    pub fn request(&self) -> Option<&Request> {
        if let Command::Client(request) = self.untagged() { Some(request) } else { None }
    }

    /// Returns the name for log lines; a tag does not change the name.
    pub fn name(&self) -> &'static str {
        match self.untagged() {
            Command::Client(request) => request.opcode().as_str(),
            Command::Noop => "sync",
            Command::OpenSession { .. } => "openSession",
            Command::Reattach { .. } => "reattach",
            Command::ExpireSession { .. } => "expireSession",
            Command::Reap { .. } => "reap",
            Command::Configure { .. } => "configure",
            Command::Tagged { .. } => "tagged",
            Command::LockDue { .. } => "lockDue",
            Command::CompareDigests => "compareDigests",
            Command::DigestAt { .. } => "digestAt",
            Command::Refused(_) => "refused",
            Command::Found { .. } => "found",
            Command::EndGrace => "endGrace",
            Command::RaiseVersion { .. } => "raiseVersion",
            Command::HoldVersion { .. } => "holdVersion",
            Command::Fenced { .. } => "fenced",
            Command::RaiseTokens { .. } => "raiseTokens",
            Command::Restart { .. } => "restart",
        }
    }

    /// Takes out the command's first path for a log line. Call only after apply: the command is damaged
    /// afterwards.
    pub fn take_path(&mut self) -> Option<String> {
        let command = match self {
            Command::Tagged { command, .. } => &mut **command,
            other => other,
        };
        match command {
            Command::Client(request) => take_path_of(request),
            Command::Reap { path } | Command::LockDue { lock: path } => Some(std::mem::take(path)),
            Command::Fenced { change, .. } => Some(std::mem::take(path_in(change))),
            _ => None,
        }
    }

    /// Replaces the command by its refusal. A tag stays: the number of a write has one outcome, also for a
    /// refusal.
    #[must_use]
    pub fn refused(self, code: ErrorCode) -> Command {
        match self {
            Command::Tagged { id, acked, .. } => Command::Refused(code).tagged(id, acked),
            _ => Command::Refused(code),
        }
    }
}

/// The payload of one log entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The leader's log clock, milliseconds since 1970 (`coordinator/raft/consensus/src/log_clock.rs`: the
    /// wall clock at the leader's start, advanced by a monotonic clock and raised by earlier stamps). Time
    /// never goes backwards in the state machine. Lock-delays, maximum holds and TTLs count by this time.
    pub time_ms: i64,
    /// Enables hard quotas. Copied from the leader's configuration: all replicas agree, whatever their own
    /// configuration says. Encoded in the flags, see `codec.rs`.
    #[serde(skip)]
    pub enforce_quota: bool,
    /// Restricts the ends of holds of locks without a rule to superusers. Copied from the leader's
    /// configuration; encoded in the flags, see `codec.rs`.
    #[serde(skip)]
    pub guard_locks: bool,
    /// Number of the entry in its term. Encoded in front of the body, see `codec.rs`.
    #[serde(skip)]
    pub ordinal: Ordinal,
    pub proposals: Vec<Proposal>,
}

/// Number of a batch among the entries of its term. The leader of a term counts from 1.
///
/// Raft may refuse an entry of a leader and accept the next entry. All nodes then skip the next entry,
/// because the entry does not follow its predecessor, and the leader proposes both again. The default, number
/// 0, stands for no number: nodes accept an entry without a number always. Batches without proposals have no
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ordinal {
    pub term: u64,
    /// Counts the entries of the term, from 1.
    pub number: u64,
}

impl Ordinal {
    /// Returns the ordinal of the next entry in `term`.
    pub fn next_in(self, term: u64) -> Ordinal {
        let last = if self.term == term { self.number } else { 0 };
        Ordinal { term, number: last.saturating_add(1) }
    }
}

/// The leader's decisions for all proposals of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub time_ms: i64,
    pub enforce_quota: bool,
    pub guard_locks: bool,
}

impl Batch {
    /// Returns the stamp of all proposals in the batch.
    pub fn stamp(&self) -> Stamp {
        Stamp { time_ms: self.time_ms, enforce_quota: self.enforce_quota, guard_locks: self.guard_locks }
    }
}

/// Sender and zxid of a change.
pub(crate) struct Author<'a> {
    pub zxid: Zxid,
    pub session: SessionId,
    /// Slot of the session; valid until the end of the command.
    pub place: Slot,
    pub who: &'a [Id],
    /// The leader's decisions for the batch.
    pub stamp: Stamp,
}

/// The first half of the SHA-256 of a session's password. A password has 16 random bytes: only a search
/// through all passwords finds one with the same proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof(pub(crate) [u8; 16]);

impl Proof {
    pub fn of(password: &[u8]) -> Proof {
        let hash = Sha256::digest(password);
        let (half, _) = hash.split_first_chunk().expect("a SHA-256 has 32 bytes");
        Proof(*half)
    }

    /// Makes the proof of a session that no client can return to: the second half of the SHA-256 of `name`.
    /// Nodes recognize the sessions that they act for by this proof. Only a search through all passwords
    /// finds a password.
    pub fn without_password(name: &[u8]) -> Proof {
        let hash = Sha256::digest(name);
        let (_, half) = hash.split_last_chunk().expect("a SHA-256 has 32 bytes");
        Proof(*half)
    }

    /// Compares in constant time.
    pub fn is_that_of(&self, other: &Proof) -> bool {
        let different = self.0.iter().zip(&other.0).fold(0, |sum, (a, b)| sum | std::hint::black_box(a ^ b));
        different == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_that_of_its_password_alone() {
        let proof = Proof::of(b"abc");
        assert_eq!(proof.0[..4], [0xba, 0x78, 0x16, 0xbf], "as FIPS 180 has it");
        assert!(proof.is_that_of(&Proof::of(b"abc")));
        for other in [&b"abd"[..], b"", b"abc\0"] {
            assert!(!proof.is_that_of(&Proof::of(other)));
        }
        assert!(!proof.is_that_of(&Proof([0xba; 16])));
        assert!(!proof.is_that_of(&Proof::without_password(b"abc")));
    }
}
