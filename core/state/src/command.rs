//! The log format: what the leader proposes and every replica applies, in order.
//!
//! A log entry is one [`Batch`]: the commands that waited together, folded by the leader.

use std::sync::Arc;

use rowlock_proto::acl::Id;
use rowlock_proto::lock::Claim;
use rowlock_proto::request::{Op, Request};
use rowlock_proto::{ClusterId, ErrorCode, FencingToken, NodeId, SessionId};
use serde::{Deserialize, Serialize};

use crate::proof::Proof;
use crate::upgrade::ClusterVersion;

/// How often a session has been attached to a connection. Proposals of an older attachment are refused
/// (`SessionMoved`), so a connection that the client has left cannot act any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attachment(pub u64);

/// Where a proposal came from, so that the origin node, and no other, answers its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// The node that the client is connected to.
    pub node: NodeId,
    /// A random number of that node's process, so that a restarted node ignores its former life's proposals.
    pub incarnation: u64,
    /// Counts the proposals of that process, from 1.
    pub request: u64,
}

/// A command with its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub origin: Origin,
    /// On whose behalf; [`SessionId::NONE`] for the cluster's own commands and for `OpenSession`.
    pub session: SessionId,
    /// The sender's attachment of that session.
    pub attachment: Attachment,
    /// The sender's identities for ACL checks, without `world:anyone`, which everybody is. One
    /// list for all proposals of a connection.
    pub identities: Arc<[Id]>,
    pub command: Command,
}

/// A change of the replicated state: a client's request, or one of the cluster's own commands.
///
/// Invariant: bincode numbers the variants by their order. The last two are skipped there, since `codec`
/// writes them; so they stay the last ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Nothing: a new leader's first entry, and a place in the log that a node waits for. Takes no zxid.
    Noop,
    /// Opens a session; its id is made from this command's zxid and the origin node.
    OpenSession {
        /// Derived from the password, which the origin node makes and sends to the client alone.
        proof: Proof,
        timeout_ms: u32,
    },
    /// Moves a session to a new connection: bumps its attachment. Takes no zxid.
    Reattach {
        /// The session's attachment when the client asked, as its node knew it; `None`: whatever it is. If it
        /// is another one by now the command is refused (`SessionMoved`): one that comes late, because its
        /// client has given it up and gone elsewhere, takes nothing from the client.
        from: Option<Attachment>,
        session: SessionId,
        /// Must be the session's.
        proof: Proof,
        /// Newly negotiated timeout, milliseconds.
        timeout_ms: u32,
    },
    /// The leader saw no sign of life for the whole timeout; or a superuser, whose identities the proposal
    /// has, ends the session. Without effect if the session has been attached again.
    ExpireSession {
        session: SessionId,
        /// The attachment that the leader's decision was about.
        attachment: Attachment,
    },
    /// The leader's sweep: deletes the container or TTL znode if it is still idle and childless.
    Reap { path: String },
    /// Writes `/zookeeper/config`, after the membership has changed.
    Configure {
        /// The text that ZooKeeper clients read.
        config: String,
    },
    /// The leader's sweep: a lock-delay may be over, or something has been held for too long.
    LockDue {
        /// Path of the lock's znode.
        lock: String,
    },
    /// The leader's mark: every node notes its digest behind this entry. Changes nothing, takes no zxid.
    CompareDigests,
    /// The digest of the origin's state behind a mark. Changes nothing, takes no zxid.
    DigestAt {
        /// Log index of the mark's entry.
        index: u64,
        digest: u64,
    },
    /// What the leader has refused, in its place: too dear ([`crate::Machine::price`]), or there is no
    /// memory. Its author is answered with this.
    Refused(ErrorCode),
    /// The cluster's id, drawn by its first leader. The first one counts. Takes no zxid.
    Found { cluster: ClusterId },
    /// The leader of a restored cluster has waited for its grace: sessions may be opened. Takes no zxid.
    EndGrace,
    /// The cluster goes over to a version that all its members know. An older one changes nothing. Takes no
    /// zxid. Every release reads this command: it tells an older one that it must stop, and what to run.
    RaiseVersion { to: ClusterVersion },
    /// Whether the leader waits for an operator's word before it raises the version. Takes no zxid.
    HoldVersion { hold: bool },
    /// A change of a znode that takes effect only while the claim holds its lock, also another session's. Its
    /// outcome is that of a multi of a check and the change.
    Fenced { claim: Claim, change: Op },
    /// Raises the zxid, so that all fencing tokens from here on are larger than `above`: resources know the
    /// tokens of another service. A smaller number changes nothing. Takes no zxid.
    RaiseTokens { above: FencingToken },
    /// A write that takes effect once in its session, however often it comes. Takes no zxid when it comes
    /// again.
    #[serde(skip)]
    Tagged {
        /// Which write of the session it is.
        id: u64,
        /// Up to here the session's client knows the outcomes.
        acked: u64,
        /// The write ([`Command::is_write`]), and so never a tagged one.
        command: Box<Command>,
    },
    /// A client's request as it came, of an opcode that [is logged](rowlock_proto::OpCode::is_logged). The
    /// state answers with the request's [`Response`](rowlock_proto::response::Response). The proposal says
    /// for which session and with whose rights; what else the client said is in the request.
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

/// Takes out the first path of a logged request.
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
        // A slice of an entry, which is not to be kept.
        Request::Acquire(all) => return Some(all.first()?.lock.to_string()),
        Request::Release(claims) | Request::Verify(claims) => return Some(claims.first()?.path.to_string()),
        Request::Convert { claim, .. } | Request::ForceRelease(claim) => return Some(claim.path.to_string()),
        _ => return None,
    };
    Some(std::mem::take(path))
}

impl Command {
    /// Makes the command of a client's request. `None`: it does not go through the log, or it is a tag on
    /// what is no write.
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

    /// Returns whether a session may keep the outcome: of a client's write, not of what the cluster does
    /// itself.
    pub fn is_write(&self) -> bool {
        match self {
            Command::Client(request) => request.opcode().may_be_tagged(),
            Command::Fenced { .. } | Command::Refused(_) => true,
            _ => false,
        }
    }

    /// The command without its tag.
    pub fn untagged(&self) -> &Command {
        match self {
            Command::Tagged { command, .. } => command,
            other => other,
        }
    }

    /// Returns the client's request in it, tagged or not.
    pub fn request(&self) -> Option<&Request> {
        if let Command::Client(request) = self.untagged() { Some(request) } else { None }
    }

    /// Returns its name in log lines; a tagged one has that of the command in it.
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
        }
    }

    /// Takes out the path that the command is about, or the first of them, for a log line. To be called when
    /// the command has been applied: it is not the same afterwards.
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

    /// The same with nothing of the command in it but the refusal: a number of a write has one outcome, this
    /// one too.
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
    /// The leader's reading of the log's clock, milliseconds since 1970
    /// (`coordinator/raft/consensus/src/log_clock.rs`: the wall clock of its start, counted on by a monotonic
    /// clock and raised by earlier stamps). The state machine never lets time go backwards, and measures
    /// lock-delays, maximum holds and TTLs by it.
    pub time_ms: i64,
    /// Whether hard quotas refuse what goes beyond them: the leader's configuration, so that all replicas
    /// agree whatever is in theirs. Not part of the body: see `codec.rs`.
    #[serde(skip)]
    pub enforce_quota: bool,
    /// Set if only superusers end holds of locks that no rule names: the leader's configuration. Not part of
    /// the body: see `codec.rs`.
    #[serde(skip)]
    pub guard_locks: bool,
    /// Which entry of its leader's it is. Not part of the body: see `codec.rs`.
    #[serde(skip)]
    pub ordinal: Ordinal,
    pub proposals: Vec<Proposal>,
}

/// Which entry of its term a batch is: the leader of a term counts its entries from 1.
///
/// Raft may refuse an entry of a leader's and take the next one. The next one is then skipped on every node,
/// since it does not follow its predecessor, and the leader proposes both again. The zero of a default is no
/// number: such an entry is always taken. One without proposals has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ordinal {
    pub term: u64,
    /// Counts the entries of the term, from 1.
    pub number: u64,
}

impl Ordinal {
    /// The entry behind this one in `term`.
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
    /// Returns the stamp of all its proposals.
    pub fn stamp(&self) -> Stamp {
        Stamp { time_ms: self.time_ms, enforce_quota: self.enforce_quota, guard_locks: self.guard_locks }
    }
}
