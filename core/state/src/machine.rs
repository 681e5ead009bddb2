//! The replicated state machine: applies one proposal at a time, assigns zxids, and dispatches each proposal
//! to its operation.
//!
//! The machine lies between the log and all readers of the state. Never reads a clock, never draws a random
//! number, never fails: input that a client can cause gets an answer; input that no client can cause is an
//! assertion.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, Version, Zxid};

use crate::acl_table::SharedAcl;
use crate::command::{Author, Command, Ordinal, Proposal, Stamp};
use crate::digest::Hasher;
use crate::done::Cause;
use crate::guard::decides;
use crate::locks::Locks;
use crate::outcome::{Applied, Attached, EventSink, SessionEnd};
use crate::rules::Rules;
use crate::sessions::Sessions;
use crate::shared_map::Slot;
use crate::tree::{Path, Tree, TreePosition};
use crate::version::{NewCluster, Upgrade};
use crate::znode::{Kind, Meta, Znode};

/// Znode with the membership's text, read and watched by ZooKeeper's clients.
pub(crate) const CONFIG_PATH: &str = "/zookeeper/config";
/// Znodes that always exist.
pub(crate) const RESERVED: [&str; 4] = ["/", "/zookeeper", CONFIG_PATH, "/zookeeper/quota"];

/// The replicated state: znodes, sessions, locks, outcomes.
///
/// A clone shares all structure and costs nothing until one of the two changes.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) tree: Tree,
    pub(crate) sessions: Sessions,
    pub(crate) locks: Locks,
    /// Zxid of the last command that took a zxid.
    pub(crate) last_zxid: Zxid,
    /// Time of the newest batch. Invariant: never decreases, whatever a new leader's clock says.
    pub(crate) time_ms: i64,
    /// The last numbered entry that the state took.
    pub(crate) last_entry: Ordinal,
    /// The cluster of this state; `None` until the first leader has drawn an id.
    pub(crate) cluster: Option<NewCluster>,
    pub(crate) upgrade: Upgrade,
    /// The rules of locks. Invariant: equal to the text of the rules' znode.
    pub(crate) rules: Arc<Rules>,
    /// Positions visited by deadlock searches during the current entry.
    pub(crate) searched: usize,
    /// Buffer for the path of a new position.
    pub(crate) scratch: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Znodes, including the root and reserved znodes.
    pub znodes: u64,
    /// Ephemeral znodes among them.
    pub ephemerals: u64,
    /// Bytes of all paths and data.
    pub approximate_data_bytes: u64,
    pub sessions: u64,
    /// Locks with holders, waiters or a delay.
    pub locks: u64,
    /// Queue positions that hold their lock.
    pub lock_holders: u64,
    /// Queue positions that wait.
    pub lock_waiters: u64,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// Returns the state before the first log entry: the reserved znodes, as in a fresh ZooKeeper.
    pub fn new() -> Self {
        let open = SharedAcl::new(Acl::open());
        let readable = SharedAcl::new(vec![Acl { perms: perms::READ, id: Id::anyone() }]);
        let reserved = |acl: &SharedAcl, version| {
            let mut meta = Meta::new(Zxid(0), 0, Kind::Persistent);
            (meta.version, meta.aversion) = (Version(version), Version(version));
            Znode::new(meta, Some(Bytes::new()), acl.clone())
        };
        let mut tree = Tree::new(reserved(&open, 0));
        for path in &RESERVED[1..] {
            let znode = if *path == CONFIG_PATH { reserved(&readable, -1) } else { reserved(&open, 0) };
            // The parents do not count these creates: sequence numbers start at 0 everywhere.
            let path = Path::new(path).expect("a reserved path has a slash");
            let parent = tree.find(path.parent()).expect("parents come first");
            let at = tree.node(parent).children.find(path.name().as_bytes()).expect_err("each comes once");
            let id = tree.add(znode, parent);
            tree.link(path, path.name().into(), (id, TreePosition { parent, at }), |_| ());
        }
        Machine {
            tree,
            sessions: Sessions::default(),
            locks: Locks::default(),
            last_zxid: Zxid(0),
            time_ms: 0,
            last_entry: Ordinal::default(),
            cluster: None,
            upgrade: Upgrade::default(),
            rules: Arc::default(),
            searched: 0,
            scratch: String::new(),
        }
    }

    /// Returns the zxid of the last change.
    pub fn last_zxid(&self) -> Zxid {
        self.last_zxid
    }

    /// Returns the last numbered entry that the state took.
    pub fn last_entry(&self) -> Ordinal {
        self.last_entry
    }

    /// Returns whether the log's next batch follows the last batch of its term, and records the batch if so.
    /// Call for each batch before its first proposal. Skip all proposals of a batch that does not follow: the
    /// batch has overtaken another one, and the overtaken batch would take effect late or never; or the batch
    /// is a repetition.
    ///
    /// Invariant: all replicas skip the same entries, since the result depends on the log alone.
    #[must_use]
    pub fn takes(&mut self, ordinal: Ordinal) -> bool {
        self.searched = 0;
        if ordinal.number == 0 {
            return true;
        }
        let follows =
            ordinal.term >= self.last_entry.term && ordinal == self.last_entry.next_in(ordinal.term);
        if decides!("entry-follows", follows) {
            assert!(ordinal >= self.last_entry, "{ordinal:?} follows {:?}", self.last_entry);
            self.last_entry = ordinal;
        }
        follows
    }

    /// Applies the next proposal of the log, of a batch with this time that enforces no quotas.
    pub fn apply<S: EventSink + ?Sized>(
        &mut self,
        time_ms: i64,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Applied {
        self.apply_stamped(Stamp { time_ms, ..Stamp::default() }, proposal, sink)
    }

    /// Applies the next proposal of the log. `stamp` comes from the proposal's batch.
    ///
    /// Events go to `sink` in order, after the whole change. A command takes one zxid, also when rejected.
    /// Commands that change no znode and no lock take none (see `takes_zxid`), nor do commands of an invalid
    /// session or attachment.
    pub fn apply_stamped<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Applied {
        self.time_ms = self.time_ms.max(stamp.time_ms);
        let before = self.last_zxid;
        let mut attached = None;
        let result = match &proposal.command {
            Command::OpenSession { .. } | Command::Reattach { .. } => {
                let given = self.run_attaching(proposal, sink);
                given.map(|given| {
                    attached = Some(given);
                    Response::Empty
                })
            }
            _ => self.run(stamp, proposal, sink),
        };
        let taken = self.last_zxid.0 - before.0;
        let is_jump = matches!(proposal.command, Command::RaiseTokens { .. } | Command::Restart { .. });
        assert!((0..=1).contains(&taken) || is_jump, "a command takes one zxid, or none");
        debug_assert!(
            taken == 0 || is_jump || takes_zxid(&proposal.command),
            "{:?} takes a zxid",
            proposal.command
        );
        self.check_counts();
        Applied { zxid: self.last_zxid, result, attached }
    }

    /// Asserts that the counts of different parts of the state agree.
    fn check_counts(&self) {
        let (_, holders, waiters) = self.locks.counts();
        let totals = self.tree.totals();
        debug_assert!(totals.ephemerals <= totals.znodes, "more znodes are ephemeral than there are");
        assert!(holders + waiters <= totals.ephemerals, "every place in a queue is an ephemeral znode");
        debug_assert!(totals.ephemerals == 0 || self.sessions.len() > 0, "an ephemeral znode has a session");
        let least = self.tree.root().bytes_below + totals.znodes;
        debug_assert!(totals.bytes >= least, "a path is a byte at least");
    }

    /// Returns the fingerprint of the whole state: equal on all replicas at the same log index.
    pub fn digest(&self) -> u64 {
        let counters = Hasher::new(5).int(self.last_zxid.0).int(self.time_ms).finish();
        let Ordinal { term, number } = self.last_entry;
        let entry = if number == 0 { 0 } else { Hasher::new(6).word(term).word(number).finish() };
        let parts = [
            entry,
            self.cluster_digest(),
            self.upgrade_digest(),
            self.tree.totals().digest,
            self.sessions.digest(),
            self.locks.digest(),
        ];
        parts.into_iter().fold(counters, u64::wrapping_add)
    }

    pub fn counts(&self) -> Counts {
        let totals = self.tree.totals();
        let (locks, lock_holders, lock_waiters) = self.locks.counts();
        Counts {
            znodes: totals.znodes,
            ephemerals: totals.ephemerals,
            approximate_data_bytes: totals.bytes,
            sessions: self.sessions.len() as u64,
            locks,
            lock_holders,
            lock_waiters,
        }
    }

    /// Opens a session, or attaches a session to another connection.
    fn run_attaching<S: EventSink + ?Sized>(
        &mut self,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Result<Attached, ErrorCode> {
        match proposal.command {
            // Clients try again.
            Command::OpenSession { .. } if decides!("grace-refuses-sessions", self.grace_ms() > 0) => {
                Err(ErrorCode::ThrottledOp)
            }
            Command::OpenSession { proof, timeout_ms } => {
                Ok(self.create_session(proposal, proof, timeout_ms, sink))
            }
            Command::Reattach { from, session, proof, timeout_ms } => {
                self.attach(session, proof, from, timeout_ms, sink)
            }
            _ => unreachable!("the caller gives no other command"),
        }
    }

    fn run<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        match &proposal.command {
            Command::Client(request) => self.run_request(stamp, proposal, request, sink),
            Command::Tagged { id, acked, command } => {
                self.run_once(stamp, proposal, (*id, *acked, command), sink)
            }
            command @ (Command::Fenced { .. } | Command::Refused(_)) => {
                let (place, _) = self.admit(proposal.session, proposal.attachment)?;
                self.run_write(stamp, (proposal, place), command, sink)
            }
            Command::Noop => Ok(self.noop()),
            Command::CompareDigests | Command::DigestAt { .. } => Ok(Response::Empty),
            Command::ExpireSession { session, attachment } => {
                self.admit(*session, *attachment)?;
                // The leader's own proposals have no identities.
                let by_superuser = crate::acl::is_super(&proposal.identities);
                let end = if decides!("superuser-ends-session", by_superuser) {
                    SessionEnd::Ended
                } else {
                    SessionEnd::Expired
                };
                Ok(self.end_session(*session, end, sink))
            }
            Command::Reap { path } => {
                let zxid = self.next_zxid();
                let done = self.reap(zxid, path)?;
                self.publish(Cause::of_the_cluster(zxid), &mut [done], sink);
                Ok(Response::Empty)
            }
            Command::Configure { config } => {
                let zxid = self.next_zxid();
                let done = self.configure(zxid, config);
                self.publish(Cause::of_the_cluster(zxid), &mut [done], sink);
                Ok(Response::Empty)
            }
            command @ (Command::Found { .. } | Command::EndGrace) => Ok(self.begin(command)),
            command @ (Command::RaiseVersion { .. } | Command::HoldVersion { .. }) => {
                Ok(self.decide_on_version(command))
            }
            Command::RaiseTokens { above } => self.raise_tokens(*above),
            Command::Restart { cluster, grace_ms } => Ok(self.restart(*cluster, *grace_ms, sink)),
            Command::LockDue { lock } => {
                let zxid = self.next_zxid();
                self.lock_due(zxid, lock, sink);
                Ok(Response::Empty)
            }
            Command::OpenSession { .. } | Command::Reattach { .. } => unreachable!("they attach a session"),
        }
    }

    /// Runs a client's request. sync and ask need no admitted session.
    fn run_request<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
        request: &Request,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        match request {
            Request::Sync(path) => {
                self.noop();
                return Ok(Response::Path(path.clone()));
            }
            Request::Ask(ask) => return self.ask((proposal, stamp), ask, sink),
            _ => {}
        }
        let (place, _) = self.admit(proposal.session, proposal.attachment)?;
        match request {
            Request::Verify(claims) => self.verify(proposal, claims),
            Request::CloseSession => Ok(self.end_session(proposal.session, SessionEnd::Closed, sink)),
            write if write.opcode().may_be_tagged() => {
                self.run_write(stamp, (proposal, place), &proposal.command, sink)
            }
            // The codec decodes no other request from a log.
            _ => Err(ErrorCode::Unimplemented),
        }
    }

    /// Runs a client's write. `admit` has found the session in its slot.
    pub(crate) fn run_write<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        (proposal, place): (&Proposal, Slot),
        write: &Command,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        let zxid = self.next_zxid();
        let (session, who) = (proposal.session, &*proposal.identities);
        let by = Author { zxid, session, place, who, stamp };
        let request = match write {
            Command::Client(request) => request,
            Command::Refused(code) => return Err(*code),
            Command::Fenced { claim, change } => return self.fenced(&by, claim, change, sink),
            _ => unreachable!("the caller has looked: {write:?} is no write"),
        };
        let done = match request {
            Request::Create(create) | Request::Create2(create) | Request::CreateContainer(create) => {
                self.create(&by, create, None)?
            }
            Request::CreateTtl(create, ttl_ms) => self.create(&by, create, Some(*ttl_ms))?,
            Request::Delete { path, version } => self.delete(&by, path, *version)?,
            Request::SetData(set) => self.set_data(&by, set)?,
            Request::SetAcl(set) => self.set_acl(&by, set)?,
            Request::Multi(ops) => return Ok(Response::Multi(self.multi(&by, ops, sink))),
            Request::Acquire(all) => return self.acquire(&by, all, sink),
            Request::Release(claims) => return self.release(&by, claims, sink),
            Request::Abandon(attempts) => return self.abandon(&by, attempts, sink),
            Request::ForceRelease(claim) => return self.force_release(&by, claim, sink),
            Request::Convert { claim, mode, prefix } => {
                return self.convert(&by, claim, *mode, prefix, sink);
            }
            _ => unreachable!("the caller has looked: {} is no write", request.opcode()),
        };
        let mut done = [done];
        self.end_delays(&done);
        self.publish(Cause::new(&by, None), &mut done, sink);
        let [done] = done;
        debug_assert!(self.is_as_done(request, &done), "{} is not as {request:?} leaves it", done.path());
        Ok(match request {
            Request::Create(_) => Response::Path(done.path),
            Request::Create2(_) | Request::CreateContainer(_) | Request::CreateTtl(..) => {
                Response::PathStat(done.path, done.stat)
            }
            Request::Delete { .. } => Response::Empty,
            _ => Response::Stat(done.stat),
        })
    }

    pub(crate) fn next_zxid(&mut self) -> Zxid {
        self.last_zxid.0 += 1;
        self.last_zxid
    }
}

fn takes_zxid(command: &Command) -> bool {
    match command {
        Command::Client(request) => !matches!(request, Request::Sync(_) | Request::Verify(_)),
        Command::Noop
        | Command::CompareDigests
        | Command::DigestAt { .. }
        | Command::Reattach { .. }
        | Command::Found { .. }
        | Command::EndGrace
        | Command::RaiseVersion { .. }
        | Command::HoldVersion { .. }
        | Command::RaiseTokens { .. } => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
