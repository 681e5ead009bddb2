//! The log format: what the leader proposes and every replica applies, in order.
//!
//! A log entry is one [`Batch`]: the commands that waited together, folded by the leader.

use std::cell::Cell;
use std::sync::Arc;

use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Few, Mode};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{ClusterId, ErrorCode, FencingToken, NodeId, SessionId, Version};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

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

/// A change of the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Nothing: a new leader's first entry, and `sync`'s place in the log. Takes no zxid.
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
    /// The session (of the proposal) ends by its client's wish.
    CloseSession,
    /// The leader saw no sign of life for the whole timeout; or a superuser, whose identities the proposal
    /// has, ends the session. Without effect if the session has been attached again.
    ExpireSession {
        session: SessionId,
        /// The attachment that the leader's decision was about.
        attachment: Attachment,
    },
    /// create, create2, createContainer (flags 4), createTTL.
    Create {
        /// Path, data, ACL, flags.
        create: Create,
        /// Time to live in milliseconds, for the TTL modes.
        ttl_ms: Option<i64>,
    },
    Delete {
        path: String,
        version: Version,
    },
    SetData(SetData),
    SetAcl(SetAcl),
    /// multi: all or nothing.
    Multi(Vec<Op>),
    /// The leader's sweep: deletes the container or TTL znode if it is still idle and childless.
    Reap {
        path: String,
    },
    /// Writes `/zookeeper/config`, after the membership has changed.
    Configure {
        /// The text that ZooKeeper clients read.
        config: String,
    },
    /// A write that takes effect once in its session, however often it comes. Takes no zxid when it comes
    /// again.
    Tagged {
        /// Which write of the session it is.
        id: u64,
        /// Up to here the session's client knows the outcomes.
        acked: u64,
        /// The write: one of a client ([`Command::is_write`]), not this one again and not `CloseSession`.
        #[serde(deserialize_with = "one_write")]
        command: Box<Command>,
    },
    /// acquire: places in the queues of all these locks, or in none.
    Acquire(Few<Acquire>),
    /// release: gives back what is held.
    Release(Few<Claim>),
    /// abandon: leaves queues, whatever the state of the place.
    Abandon(Vec<Attempt>),
    /// verify: which of these are held. Takes no zxid.
    Verify(Few<Claim>),
    /// convert: holds in another mode.
    Convert {
        claim: Claim,
        /// In which mode from now on.
        mode: Mode,
        /// Name of a new place's znode before its number.
        prefix: String,
    },
    /// forceRelease: ends the hold of another session.
    ForceRelease(Claim),
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
    Found {
        cluster: ClusterId,
    },
    /// The leader of a restored cluster has waited for its grace: sessions may be opened. Takes no zxid.
    EndGrace,
    /// The cluster goes over to a version that all its members know. An older one changes nothing. Takes no
    /// zxid. Every release reads this command: it tells an older one that it must stop, and what to run.
    RaiseVersion {
        to: ClusterVersion,
    },
    /// Whether the leader waits for an operator's word before it raises the version. Takes no zxid.
    HoldVersion {
        hold: bool,
    },
    /// ask: a question to the holders of a lock. Needs no session.
    Ask(Ask),
    /// A change of a znode that takes effect only while the claim holds its lock, also another session's. Its
    /// outcome is that of a multi of a check and the change.
    Fenced {
        claim: Claim,
        change: Op,
    },
    /// Raises the zxid, so that all fencing tokens from here on are larger than `above`: resources know the
    /// tokens of another service. A smaller number changes nothing. Takes no zxid.
    RaiseTokens {
        above: FencingToken,
    },
}

thread_local! {
    static IS_TAGGED: Cell<bool> = const { Cell::new(false) };
}

/// What a number belongs to. Tags in tags would be read by recursion, and a long chain of them would be the
/// end of the stack: the second one is refused before it is looked into.
fn one_write<'de, D: Deserializer<'de>>(from: D) -> Result<Box<Command>, D::Error> {
    if IS_TAGGED.replace(true) {
        return Err(D::Error::custom("a tagged command in a tagged command"));
    }
    let command = Command::deserialize(from);
    IS_TAGGED.set(false);
    let command = command?;
    if command.is_write() {
        Ok(Box::new(command))
    } else {
        Err(D::Error::custom("a tag on what is no write"))
    }
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

impl Command {
    /// Whether it is a client's write, of which its session may keep the outcome. What the cluster does
    /// itself is none, nor what changes nothing.
    pub fn is_write(&self) -> bool {
        match self {
            Command::Create { .. }
            | Command::Delete { .. }
            | Command::SetData(_)
            | Command::SetAcl(_)
            | Command::Multi(_)
            | Command::Acquire(_)
            | Command::Release(_)
            | Command::Abandon(_)
            | Command::Convert { .. }
            | Command::ForceRelease(_)
            | Command::Fenced { .. }
            | Command::Refused(_) => true,
            Command::Noop
            | Command::Tagged { .. }
            | Command::Verify(_)
            | Command::LockDue { .. }
            | Command::OpenSession { .. }
            | Command::Reattach { .. }
            | Command::CompareDigests
            | Command::DigestAt { .. }
            | Command::CloseSession
            | Command::ExpireSession { .. }
            | Command::Reap { .. }
            | Command::Found { .. }
            | Command::EndGrace
            | Command::RaiseVersion { .. }
            | Command::HoldVersion { .. }
            | Command::RaiseTokens { .. }
            | Command::Ask(_)
            | Command::Configure { .. } => false,
        }
    }

    /// The command without its tag.
    pub fn untagged(&self) -> &Command {
        match self {
            Command::Tagged { command, .. } => command,
            other => other,
        }
    }

    /// What it does, as the audit log and other pages call it; a tagged one like the one in it.
    pub fn name(&self) -> &'static str {
        match self.untagged() {
            Command::Noop => "sync",
            Command::OpenSession { .. } => "openSession",
            Command::Reattach { .. } => "reattach",
            Command::CloseSession => "closeSession",
            Command::ExpireSession { .. } => "expireSession",
            Command::Create { .. } => "create",
            Command::Delete { .. } => "delete",
            Command::SetData(_) => "setData",
            Command::SetAcl(_) => "setACL",
            Command::Multi(_) => "multi",
            Command::Reap { .. } => "reap",
            Command::Configure { .. } => "configure",
            Command::Tagged { .. } => "tagged",
            Command::Acquire(_) => "acquire",
            Command::Release(_) => "release",
            Command::Abandon(_) => "abandon",
            Command::Verify(_) => "verify",
            Command::Convert { .. } => "convert",
            Command::ForceRelease(_) => "forceRelease",
            Command::LockDue { .. } => "lockDue",
            Command::CompareDigests => "compareDigests",
            Command::DigestAt { .. } => "digestAt",
            Command::Refused(_) => "refused",
            Command::Found { .. } => "found",
            Command::EndGrace => "endGrace",
            Command::RaiseVersion { .. } => "raiseVersion",
            Command::HoldVersion { .. } => "holdVersion",
            Command::Ask(_) => "ask",
            Command::Fenced { .. } => "fenced",
            Command::RaiseTokens { .. } => "raiseTokens",
        }
    }

    /// Takes out the path that the command is about, or the first of them, for a log line. To be called when
    /// the command has been applied: it is not the same afterwards.
    pub fn take_path(&mut self) -> Option<String> {
        let of = match self {
            Command::Tagged { command, .. } => {
                assert!(!matches!(**command, Command::Tagged { .. }), "no tag stands in another one");
                return command.take_path();
            }
            Command::Create { create, .. } => &mut create.path,
            Command::Delete { path, .. } | Command::Reap { path } => path,
            Command::SetData(set) => &mut set.path,
            Command::SetAcl(set) => &mut set.path,
            Command::Multi(ops) => path_in(ops.first_mut()?),
            Command::Fenced { change, .. } => path_in(change),
            // A slice of an entry, which is not to be kept.
            Command::Acquire(all) => return Some(all.first()?.lock.to_string()),
            Command::Abandon(all) => &mut all.first_mut()?.lock,
            Command::Release(claims) | Command::Verify(claims) => {
                return Some(claims.first()?.path.to_string());
            }
            Command::Convert { claim, .. } | Command::ForceRelease(claim) => {
                return Some(claim.path.to_string());
            }
            Command::LockDue { lock } => lock,
            Command::Ask(ask) => &mut ask.lock,
            Command::Noop
            | Command::OpenSession { .. }
            | Command::Reattach { .. }
            | Command::CloseSession
            | Command::ExpireSession { .. }
            | Command::Configure { .. }
            | Command::CompareDigests
            | Command::DigestAt { .. }
            | Command::Refused(_)
            | Command::Found { .. }
            | Command::EndGrace
            | Command::RaiseVersion { .. }
            | Command::HoldVersion { .. }
            | Command::RaiseTokens { .. } => return None,
        };
        Some(std::mem::take(of))
    }

    /// The same with nothing of the command in it but the refusal: a number of a write has one outcome, this
    /// one too.
    #[must_use]
    pub fn refused(self, code: ErrorCode) -> Command {
        match self {
            Command::Tagged { id, acked, .. } => {
                Command::Tagged { id, acked, command: Box::new(Command::Refused(code)) }
            }
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
