//! The machine: takes one proposal at a time, gives each its zxid, and leads it to the operation that it asks
//! for.
//!
//! Stands between the log and everything that looks at the state. Never reads a clock, never draws a random
//! number, never fails: what a client can cause is an answer, what it cannot is an assertion.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::{ErrorCode, Version, Zxid};

use crate::acl::SharedAcl;
use crate::command::{Command, Ordinal, Proposal, Stamp};
use crate::digest::Hasher;
use crate::locks::{Cause, Locks};
use crate::ops::Author;
use crate::outcome::{Applied, EventSink, Outcome, SessionEnd};
use crate::restore::NewCluster;
use crate::rules::Rules;
use crate::sessions::Sessions;
use crate::shared_map::Slot;
use crate::tree::{Path, Tree, TreePosition};
use crate::upgrade::Upgrade;
use crate::znode::{Kind, Meta, Znode};

/// Text about the membership, which ZooKeeper's clients read and watch.
pub(crate) const CONFIG_PATH: &str = "/zookeeper/config";
/// Znodes that exist always.
pub(crate) const RESERVED: [&str; 4] = ["/", "/zookeeper", CONFIG_PATH, "/zookeeper/quota"];

/// The replicated state: znodes, sessions, locks, outcomes.
///
/// A clone shares all structure and costs nothing until one of the two changes.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) tree: Tree,
    pub(crate) sessions: Sessions,
    pub(crate) locks: Locks,
    /// Zxid of the last command that took one.
    pub(crate) last_zxid: Zxid,
    /// Time of the newest batch. Invariant: never goes back, whatever a new leader's clock says.
    pub(crate) time_ms: i64,
    /// The last entry with a number that was taken.
    pub(crate) last_entry: Ordinal,
    /// Which cluster it is the state of. `None`: not said yet.
    pub(crate) cluster: Option<NewCluster>,
    /// In which version the cluster writes.
    pub(crate) upgrade: Upgrade,
    /// The rules of locks. Invariant: what the text of their znode says.
    pub(crate) rules: Arc<Rules>,
    /// Places looked at by the searches for deadlocks of the entry that is being applied.
    pub(crate) searched: usize,
    /// Where the path of a new place is put together.
    pub(crate) scratch: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Znodes, with the root and the reserved ones.
    pub znodes: u64,
    /// Ephemeral znodes among them.
    pub ephemerals: u64,
    /// Bytes of all paths and data.
    pub approximate_data_bytes: u64,
    pub sessions: u64,
    /// Locks with holders, waiters or a delay.
    pub locks: u64,
    /// Places in queues that hold their lock.
    pub lock_holders: u64,
    /// Places in queues that wait.
    pub lock_waiters: u64,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// The state before the first log entry: the reserved znodes, as in a fresh ZooKeeper.
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

    /// Position of the last change.
    pub fn last_zxid(&self) -> Zxid {
        self.last_zxid
    }

    /// The last entry with a number that was taken.
    pub fn last_entry(&self) -> Ordinal {
        self.last_entry
    }

    /// Whether the next batch of the log follows the last one of its term. If it does not, no proposal of it
    /// may be applied: it has overtaken another one, which would then take effect behind it or never, or it
    /// comes again. To be asked for each batch, before its first proposal.
    ///
    /// Invariant: all replicas skip the same entries, since this depends on the log alone.
    #[must_use]
    pub fn takes(&mut self, ordinal: Ordinal) -> bool {
        self.searched = 0;
        if ordinal.number == 0 {
            return true;
        }
        let follows =
            ordinal.term >= self.last_entry.term && ordinal == self.last_entry.next_in(ordinal.term);
        if follows {
            assert!(ordinal >= self.last_entry, "{ordinal:?} follows {:?}", self.last_entry);
            self.last_entry = ordinal;
        }
        follows
    }

    /// Applies the next proposal of the log, in a batch that enforces no quotas. `time_ms` is the batch's.
    pub fn apply<S: EventSink + ?Sized>(
        &mut self,
        time_ms: i64,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Applied {
        self.apply_stamped(Stamp { time_ms, ..Stamp::default() }, proposal, sink)
    }

    /// Applies the next proposal of the log. `stamp` is its batch's.
    ///
    /// Events go to `sink` in order, after the change is whole. A command takes one zxid, also when it is
    /// rejected, but none if it changes no znode and no lock (see `takes_zxid`), or if its session or
    /// attachment is not (or no longer) valid.
    pub fn apply_stamped<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Applied {
        self.time_ms = self.time_ms.max(stamp.time_ms);
        let before = self.last_zxid;
        let result = self.run(stamp, proposal, sink);
        let taken = self.last_zxid.0 - before.0;
        let is_jump = matches!(proposal.command, Command::RaiseTokens { .. });
        assert!((0..=1).contains(&taken) || is_jump, "a command takes one zxid, or none");
        debug_assert!(
            taken == 0 || is_jump || takes_zxid(&proposal.command),
            "{:?} takes a zxid",
            proposal.command
        );
        self.check_counts();
        Applied { origin: proposal.origin, zxid: self.last_zxid, result }
    }

    /// Compares the counts of different parts of the state.
    fn check_counts(&self) {
        let (_, holders, waiters) = self.locks.counts();
        let totals = self.tree.totals();
        debug_assert!(totals.ephemerals <= totals.znodes, "more znodes are ephemeral than there are");
        assert!(holders + waiters <= totals.ephemerals, "every place in a queue is an ephemeral znode");
        debug_assert!(totals.ephemerals == 0 || self.sessions.len() > 0, "an ephemeral znode has a session");
        let least = self.tree.root().bytes_below + totals.znodes;
        debug_assert!(totals.bytes >= least, "a path is a byte at least");
    }

    /// Fingerprint of the whole state: the same on all replicas at the same log index.
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

    fn run<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Result<Outcome, ErrorCode> {
        match &proposal.command {
            Command::Noop => Ok(self.noop()),
            Command::CompareDigests | Command::DigestAt { .. } => Ok(Outcome::Done),
            // The client asks again.
            Command::OpenSession { .. } if self.grace_ms() > 0 => Err(ErrorCode::ThrottledOp),
            Command::OpenSession { proof, timeout_ms } => {
                Ok(self.create_session(proposal, *proof, *timeout_ms, sink))
            }
            Command::Reattach { from, session, proof, timeout_ms } => {
                self.attach(*session, *proof, *from, *timeout_ms, sink)
            }
            Command::ExpireSession { session, attachment } => {
                self.admit(*session, *attachment)?;
                // The leader proposes it for no client.
                let by_superuser = crate::acl::is_super(&proposal.identities);
                let end = if by_superuser { SessionEnd::Ended } else { SessionEnd::Expired };
                Ok(self.end_session(*session, end, sink))
            }
            Command::Reap { path } => {
                let zxid = self.next_zxid();
                let done = self.reap(zxid, path)?;
                self.publish(Cause::of_the_cluster(zxid), &mut [done], sink);
                Ok(Outcome::Done)
            }
            Command::Configure { config } => {
                let zxid = self.next_zxid();
                let done = self.configure(zxid, config);
                self.publish(Cause::of_the_cluster(zxid), &mut [done], sink);
                Ok(Outcome::Done)
            }
            command @ (Command::Found { .. } | Command::EndGrace) => Ok(self.begin(command)),
            command @ (Command::RaiseVersion { .. } | Command::HoldVersion { .. }) => {
                Ok(self.decide_on_version(command))
            }
            Command::RaiseTokens { above } => self.raise_tokens(*above),
            Command::LockDue { lock } => {
                let zxid = self.next_zxid();
                self.lock_due(zxid, lock, sink);
                Ok(Outcome::Done)
            }
            Command::Tagged { id, acked, command } => {
                self.run_once(stamp, proposal, (*id, *acked, command), sink)
            }
            Command::Ask(ask) => self.ask((proposal, stamp), ask, sink),
            Command::Verify(claims) => {
                self.admit(proposal.session, proposal.attachment)?;
                self.verify(proposal, claims)
            }
            _ => self.run_for_client(stamp, proposal, sink),
        }
    }

    fn run_for_client<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
        sink: &mut S,
    ) -> Result<Outcome, ErrorCode> {
        let (place, _) = self.admit(proposal.session, proposal.attachment)?;
        if proposal.command == Command::CloseSession {
            return Ok(self.end_session(proposal.session, SessionEnd::Closed, sink));
        }
        self.run_command(stamp, (proposal, place), &proposal.command, sink)
    }

    /// A write of a client whose session has been admitted, and found there.
    pub(crate) fn run_command<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        (proposal, place): (&Proposal, Slot),
        command: &Command,
        sink: &mut S,
    ) -> Result<Outcome, ErrorCode> {
        let zxid = self.next_zxid();
        let (session, who) = (proposal.session, &*proposal.identities);
        let by = Author { zxid, session, place, who, stamp };
        let done = match command {
            Command::Create { create, ttl_ms } => self.create(&by, create, *ttl_ms)?,
            Command::Delete { path, version } => self.delete(&by, path, *version)?,
            Command::SetData(set) => self.set_data(&by, set)?,
            Command::SetAcl(set) => self.set_acl(&by, set)?,
            Command::Refused(code) => return Err(*code),
            Command::Multi(ops) => return Ok(Outcome::Multi(self.multi(&by, ops, sink))),
            Command::Fenced { claim, change } => return self.fenced(&by, claim, change, sink),
            Command::Acquire(all) => return self.acquire(&by, all, sink),
            Command::Release(claims) => return self.release(&by, claims, sink),
            Command::Abandon(attempts) => return self.abandon(&by, attempts, sink),
            Command::ForceRelease(claim) => return self.force_release(&by, claim, sink),
            Command::Convert { claim, mode, prefix } => {
                return self.convert(&by, claim, *mode, prefix, sink);
            }
            Command::Noop
            | Command::Tagged { .. }
            | Command::Ask(_)
            | Command::Verify(_)
            | Command::LockDue { .. }
            | Command::Found { .. }
            | Command::EndGrace
            | Command::RaiseVersion { .. }
            | Command::HoldVersion { .. }
            | Command::RaiseTokens { .. }
            | Command::OpenSession { .. }
            | Command::Reattach { .. }
            | Command::CompareDigests
            | Command::DigestAt { .. }
            | Command::CloseSession
            | Command::ExpireSession { .. }
            | Command::Reap { .. }
            | Command::Configure { .. } => unreachable!("handled before: it is not an operation on a znode"),
        };
        let mut done = [done];
        self.end_delays(&done);
        self.publish(Cause::new(&by, None), &mut done, sink);
        let [done] = done;
        debug_assert!(self.is_as_done(command, &done), "{} is not as {command:?} leaves it", done.path());
        Ok(match command {
            Command::Create { .. } => Outcome::Created { path: done.path, stat: done.stat },
            Command::Delete { .. } => Outcome::Done,
            _ => Outcome::Stat(done.stat),
        })
    }

    pub(crate) fn next_zxid(&mut self) -> Zxid {
        self.last_zxid.0 += 1;
        self.last_zxid
    }
}

fn takes_zxid(command: &Command) -> bool {
    !matches!(
        command,
        Command::Noop
            | Command::CompareDigests
            | Command::DigestAt { .. }
            | Command::Reattach { .. }
            | Command::Verify(_)
            | Command::Found { .. }
            | Command::EndGrace
            | Command::RaiseVersion { .. }
            | Command::HoldVersion { .. }
            | Command::RaiseTokens { .. }
    )
}

#[cfg(test)]
mod tests {
    use rowlock_proto::request::Create;
    use rowlock_proto::{NodeId, SessionId};

    use super::*;
    use crate::command::{Attachment, Origin};
    use crate::outcome::{Change, SessionEnd};
    use crate::proof::Proof;

    struct Silent;

    impl EventSink for Silent {
        fn changed(&mut self, _: &Change<'_>) {}
        fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
        fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
        fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
    }

    fn run(machine: &mut Machine, session: SessionId, command: Command) -> Applied {
        let origin = Origin { node: NodeId(0x83), incarnation: 1, request: 1 };
        let proposal =
            Proposal { origin, session, attachment: Attachment(1), identities: Default::default(), command };
        let applied = machine.apply(1_000, &proposal, &mut Silent);
        machine.check().unwrap();
        applied
    }

    fn open(machine: &mut Machine) -> SessionId {
        let command = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
        match run(machine, SessionId::NONE, command).result {
            Ok(Outcome::Session { session, .. }) => session,
            other => panic!("{other:?}"),
        }
    }

    fn create(path: &str, flags: i32) -> Command {
        let create = Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags };
        Command::Create { create, ttl_ms: None }
    }

    #[test]
    fn an_entry_that_does_not_follow_the_last_one_of_its_term_is_not_taken() {
        let mut machine = Machine::new();
        let mut takes = |term, number| machine.takes(Ordinal { term, number });
        assert!(!takes(3, 2), "the first entry of a term has the number 1");
        assert!(takes(3, 1) && takes(3, 2));
        assert!(!takes(3, 4), "it has overtaken another one");
        assert!(!takes(3, 2), "it comes again");
        assert!(takes(3, 3) && takes(3, 4));
        assert!(takes(0, 0), "it has no number");
        assert!(!takes(5, 2), "the first one of the next term is missing");
        assert!(takes(5, 1));
        assert!(!takes(3, 1) && !takes(3, 5), "that term is over");
        assert_eq!(machine.last_entry(), Ordinal { term: 5, number: 1 });
    }

    #[test]
    fn states_that_expect_different_entries_differ() {
        let (mut ahead, behind) = (Machine::new(), Machine::new());
        assert!(ahead.takes(Ordinal { term: 1, number: 1 }));
        assert_ne!(ahead.digest(), behind.digest());
        let mut bytes = Vec::new();
        ahead.freeze().encode(&mut bytes).unwrap();
        let mut restored = Machine::decode(&mut bytes.as_slice()).unwrap();
        assert_eq!(restored.digest(), ahead.digest());
        assert!(restored.takes(Ordinal { term: 1, number: 2 }));
    }

    #[test]
    fn session_ids_carry_the_node_and_the_zxid() {
        let mut machine = Machine::new();
        assert_eq!(open(&mut machine), SessionId(0x0300_0000_0000_0001));
        machine.last_zxid = Zxid((1 << 56) + 8);
        assert_eq!(open(&mut machine), SessionId(0x0300_0000_0000_0009));
    }

    #[test]
    fn sequence_numbers_go_on_below_zero_past_the_largest() {
        let mut machine = Machine::new();
        let session = open(&mut machine);
        let id = machine.tree.find("/zookeeper").unwrap();
        machine.tree.update("/zookeeper", id, 0, |znode| znode.meta.creates = i32::MAX);
        for expected in ["/zookeeper/q2147483647", "/zookeeper/q-2147483648", "/zookeeper/q-2147483647"] {
            match run(&mut machine, session, create("/zookeeper/q", 2)).result {
                Ok(Outcome::Created { path, .. }) => assert_eq!(path, expected),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_very_deep_tree_is_walked_written_and_dropped_without_recursion() {
        let mut machine = Machine::new();
        let session = open(&mut machine);
        let mut path = String::new();
        let frozen = machine.freeze();
        for _ in 0..1_000 {
            path.push_str("/a");
            let Command::Create { create, .. } = create(&path, 0) else { unreachable!() };
            let proposal = Proposal {
                origin: Origin::default(),
                session,
                attachment: Attachment(1),
                identities: Default::default(),
                command: Command::Create { create, ttl_ms: None },
            };
            machine.apply(1_000, &proposal, &mut Silent).result.unwrap();
        }
        let work = move || {
            machine.check().unwrap();
            let mut bytes = Vec::new();
            machine.freeze().encode(&mut bytes).unwrap();
            let copy = Machine::decode(&mut bytes.as_slice()).unwrap();
            assert_eq!(copy.all_children_number("/", &[]), Ok(1_003));
            assert_eq!(copy.digest(), machine.digest());
            assert_eq!(frozen.machine().counts().znodes, 4);
        };
        // Recursion would need more than 64 bytes per level, whatever the build.
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap();
        thread.join().unwrap();
    }
}
