//! Deliberate mistakes in whole nodes and clients, for testing the simulator's checkers.
//!
//! Most mutants are mistakes of real lock services. Each is a small deviation at the place of the broken
//! rule, written as `if mutant::is(Mutant::X)`. Without the cargo feature `mutants` the condition is a
//! constant `false`, so a production build contains neither the test nor the mistake. With the feature, a
//! simulation enables at most a single mistake for all nodes and clients of its world, by [`with`]: a mutant,
//! or a flipped [`guard`]. See docs/decisions/mutants.md.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use crate::guard::{self, Flipped, Guard};

/// Declares the mistakes, each with its description, its name, the promises checked by the detecting
/// checkers, and the conditions of its detection.
macro_rules! mutants {
    ($($(#[doc = $what:literal])+ $variant:ident = $name:literal, by [$($promise:literal),+], when $when:literal;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $($(#[doc = $what])+ $variant,)+
        }

        impl Mutant {
            pub const ALL: &[Mutant] = &[$(Mutant::$variant,)+];

            /// Returns the name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)+
                }
            }

            /// Describes the mistake in one line.
            pub fn what(self) -> &'static str {
                match self {
                    $(Mutant::$variant => concat!($($what),+).trim_ascii(),)+
                }
            }

            /// Returns the broken promises of docs/guarantees.md; their checkers must detect the mistake.
            pub fn caught_by(self) -> &'static [&'static str] {
                match self {
                    $(Mutant::$variant => &[$($promise),+],)+
                }
            }

            /// Returns the faults and the work needed for the detection.
            pub fn when(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $when,)+
                }
            }
        }
    };
}

mutants! {
    // The disk.

    /// Acknowledges writes as durable before they are flushed; the next batch flushes them.
    AckBeforeFlush = "ack-before-flush", by ["durable", "stops-with-cause"], when "all nodes lose power while writes are acknowledged";
    /// Continues after a failed flush as if it had succeeded (fsyncgate).
    IgnoreFailedFlush = "ignore-failed-flush", by ["durable"], when "a flush fails, then power is lost";
    /// Renames files without flushing the directory.
    RenameWithoutDirSync = "rename-without-dir-sync", by ["durable"], when "power is lost after a snapshot or a new segment";
    /// Gives a snapshot its final name before the flush.
    SnapshotNotFlushed = "snapshot-not-flushed", by ["durable"], when "power is lost after a snapshot whose log is purged";
    /// Keeps its vote in memory only.
    VoteInMemory = "vote-in-memory", by ["votes-never-go-back", "one-leader-per-term"], when "a node dies during or after an election";
    /// Accepts log records with a wrong checksum.
    ChecksumIgnored = "checksum-ignored", by ["durable"], when "power is lost in the middle of a write, which is torn";
    /// Truncates a conflicting end of the log in memory, but not on disk.
    TruncateInMemory = "truncate-in-memory", by ["durable", "stops-with-cause"], when "a deposed leader with uncommitted entries is restarted";
    /// After a restart, treats every entry of its log as committed.
    CommittedTooHigh = "committed-too-high", by ["committed-never-changes", "leader-completeness", "replica-equality"], when "an isolated leader dies with entries that no other node has";

    /// Reuses segments although their old names may still be on the disk.
    RecycleWithoutDirSync = "recycle-without-dir-sync", by ["durable"], when "power is lost between the reuse of an old segment and the flush of its new name";
    /// Treats damage in the middle of the log as the end of an unfinished write.
    DamageIsTorn = "damage-is-torn", by ["durable", "logs-never-go-back"], when "a bit of the last segment flips, and the node is restarted";

    /// Identifies a node by its number alone, regardless of its data folder.
    AnyFolderWillDo = "any-folder-will-do", by ["durable", "leader-completeness"], when "a node that has acknowledged writes is wiped, and others with those writes are away";
    /// Accepts the new folder of a node without its data while the node is still a voter.
    ReadmitAVoter = "readmit-a-voter", by ["durable"], when "a node that has acknowledged writes is wiped, and others with those writes are away";

    // A loss of unflushed entries about locks.

    /// Lets a node vote like the others although the node has forgotten entries.
    VotesThoughForgotten = "votes-though-forgotten", by ["mutual-exclusion", "fencing-monotonic", "replica-equality"], when "a node loses power, and its leader is cut off before the node is admitted";
    /// Counts a node that has forgotten entries as admitted before the node has the leader's last entry.
    AdmittedAtOnce = "admitted-at-once", by ["mutual-exclusion", "replica-equality", "stops-with-cause"], when "a node loses power, and its leader is cut off soon after";
    /// Writes the mark of a usual run although the node has forgotten entries.
    MarkOverwritten = "mark-overwritten", by ["mutual-exclusion", "replica-equality", "stops-with-cause"], when "a node that has forgotten entries is killed before its admission";
    /// Compares the beginnings of boot ids.
    BootIdByPrefix = "boot-id-by-prefix", by ["mutual-exclusion", "replica-equality", "stops-with-cause"], when "a node loses power, and its leader is cut off";
    /// Writes no mark after a failed flush.
    FailedFlushUnmarked = "failed-flush-unmarked", by ["mutual-exclusion", "replica-equality", "stops-with-cause"], when "a flush fails, and the leader is cut off";
    /// Acknowledges every entry before its flush.
    MixedClass = "mixed-class", by ["forgotten-locks", "durable"], when "a majority loses power while znodes are written";
    /// Gives out the tokens of forgotten grants again.
    RestartKeepsTokens = "restart-keeps-tokens", by ["forgotten-locks", "fencing-monotonic", "restored-cluster"], when "a majority loses power while locks are granted";
    /// Keeps the sessions of the time before a restart.
    RestartKeepsSessions = "restart-keeps-sessions", by ["forgotten-locks", "mutual-exclusion", "restored-cluster"], when "a majority loses power while locks are granted";
    /// Opens sessions right after a restart.
    RestartWithoutGrace = "restart-without-grace", by ["forgotten-locks", "mutual-exclusion", "restored-cluster"], when "a majority loses power while locks are held";
    /// Ends the grace at once when another leader than that of the restart leads.
    GraceNotRepeated = "grace-not-repeated", by ["forgotten-locks", "mutual-exclusion", "restored-cluster"], when "the leader of a restarted cluster fails during the grace";
    /// Counts the votes of nodes that have forgotten entries without a restart.
    VotesWithoutRestart = "votes-without-restart", by ["mutual-exclusion", "fencing-monotonic", "replica-equality"], when "a majority loses power";

    // The replicated state.

    /// Skips the log entry after a snapshot.
    SkipEntryAfterSnapshot = "skip-entry-after-snapshot", by ["replica-equality"], when "a node begins with a snapshot, or is sent one";
    /// Leaves the outcomes of numbered writes out of the snapshot.
    SnapshotForgetsOutcomes = "snapshot-forgets-outcomes", by ["replica-equality", "exactly-once"], when "a node begins with a snapshot, or is sent one";
    /// Applies with each node's own clock instead of the leader's time stamp.
    ApplyByLocalClock = "apply-by-local-clock", by ["replica-equality"], when "nothing: clocks differ by themselves";
    /// Stamps batches with the adjustable wall clock.
    StampByWallClock = "stamp-by-wall-clock", by ["log-time", "in-time"], when "the wall clock of a leader jumps";
    /// Applies one entry in 300 with a wrong time, as if a bit had flipped in memory.
    SilentlyDiffers = "silently-differs", by ["replica-equality"], when "nothing: writes store their time";
    /// Applies by the newest version of the node's release, not by the version of the cluster.
    GateByRelease = "gate-by-release", by ["replica-equality"], when "nodes of two releases are in one cluster";
    /// Nodes exchange digests, but a node whose digest differs does not stop.
    DigestsNotJudged = "digests-not-judged", by ["replica-equality"], when "a replica differs: this tests the comparison itself";
    /// Runs a repeated numbered write again.
    RunAgain = "run-again", by ["exactly-once"], when "connections break while writes are under way";

    // A restore.

    /// A restored cluster keeps the id of the old one.
    RestoreKeepsId = "restore-keeps-id", by ["restored-cluster"], when "a node of the old cluster comes back with its old disk after a recovery";
    /// A restored cluster goes on with the zxids of the backup.
    RestoreKeepsZxid = "restore-keeps-zxid", by ["restored-cluster", "fencing-monotonic"], when "locks were granted between a backup and its restore";
    /// A restored cluster keeps the sessions of the old one.
    RestoreKeepsSessions = "restore-keeps-sessions", by ["restored-cluster"], when "a client of the old cluster comes back to the new one";
    /// A restored cluster opens sessions at once.
    RestoreWithoutGrace = "restore-without-grace", by ["restored-cluster", "mutual-exclusion"], when "a client of the old cluster does not reach the new one";

    /// Keeps connections open although a snapshot has skipped events for their clients.
    SnapshotKeepsConnections = "snapshot-keeps-connections", by ["watches", "persistent-watches", "in-time"], when "a node gets a snapshot after an isolation that was too short to lose its clients";

    // Raft.

    /// A restarted leader leads on without an election (openraft's default).
    LeaderRestore = "leader-restore", by ["log-matching", "durable"], when "a leader loses power and comes back at once";
    /// A leader without a quorum continues to send heartbeats (openraft's default, its issue 2080).
    HeartbeatsWithoutQuorum = "heartbeats-without-quorum", by ["in-time"], when "a leader reaches one node of a connected quorum, which cannot elect without that node";
    /// A candidacy lasts for a fixed time, regardless of slow flushes and failed rounds.
    ElectionsDoNotWait = "elections-do-not-wait", by ["in-time"], when "a leader is lost while the disks of all nodes are slow";
    /// Votes for candidates without checking their log.
    VoteForStaleLog = "vote-for-stale-log", by ["leader-completeness", "durable"], when "a leader is cut off or dies while a node lags";
    /// A leader treats a follower's refusal of entries as acceptance.
    ConflictTakenForSuccess = "conflict-taken-for-success", by ["durable", "committed-never-changes", "in-time"], when "a follower misses entries, or has some that no other node has";
    /// Answers sync from the local state.
    SyncIsLocal = "sync-is-local", by ["synced-reads", "linearizability"], when "a node lags, and its clients read after a sync";

    // Sessions.

    /// Expires sessions after half of their timeout.
    ExpireEarly = "expire-early", by ["ephemeral-lifetime", "mutual-exclusion"], when "a client is cut off or paused for more than half of its timeout";
    /// A leader that leads again keeps the session deadlines of its former term (etcd 15247).
    KeepOldDeadlines = "keep-old-deadlines", by ["ephemeral-lifetime", "mutual-exclusion"], when "a node loses its leadership and regains it after more than a session's timeout";
    /// Serves clients and confirms heartbeats without contact to a quorum.
    ServeWithoutQuorum = "serve-without-quorum", by ["mutual-exclusion", "ephemeral-lifetime"], when "a leader is cut off together with clients for longer than a session's timeout";
    /// A leader also counts a reply for later requests up to the same log index.
    AnswerCountsForLater = "answer-counts-for-later", by ["ephemeral-lifetime", "mutual-exclusion"], when "a leader with unread answers stalls until another one is elected";
    /// A node answers keepalives by itself, without waiting for the leader.
    PongByItself = "pong-by-itself", by ["session-expiry", "mutual-exclusion"], when "a node is cut off together with clients";

    /// Expires sessions a tick (50 ms) before their timeout.
    ExpireATickEarly = "expire-a-tick-early", by ["ephemeral-lifetime"], when "a client falls silent right after a heartbeat, and all clocks are right";
    /// Answers heartbeats although their report to the leader failed.
    AnswerUnreported = "answer-unreported", by ["session-expiry", "mutual-exclusion"], when "the link to the leader breaks while a heartbeat is reported, and stays broken";
    /// Gives sessions no extra time when a stalled leader continues.
    NobodyForgiven = "nobody-forgiven", by ["session-expiry"], when "a leader stalls for longer than a session's timeout and leads on";

    // Forwarded writes.

    /// Sends batches again although the leader may already have them.
    ForwardAgain = "forward-again", by ["exactly-once"], when "the link to a leader breaks, without an election, while writes without numbers are under way";
    /// Accepts forwarded batches from an earlier term of the same leader.
    ForwardOfAnyTerm = "forward-of-any-term", by ["session-order"], when "a leader loses its leadership and regains it while batches to it are under way";
    /// Forgets, on a change of the leader, the clients waiting for writes sent to the old leader.
    ForgetWhoWaits = "forget-who-waits", by ["in-time"], when "the leader changes while writes to it are under way";
    /// Applies an entry ahead of a refused earlier entry.
    OvertakenApplied = "overtaken-applied", by ["session-order", "replica-equality"], when "Raft refuses an entry of a leader and takes the next one";
    /// Sends the writes of one batch to the leader in reverse order.
    ReorderBatch = "reorder-batch", by ["session-order"], when "clients send several writes at once";

    // Clients' conversations.

    /// Moves a session to a connection from any other connection, not only from the connection known to the
    /// node.
    AttachFromAnywhere = "attach-from-anywhere", by ["session-moves"], when "an attach is late in the log, and its client has come through another node meanwhile";

    /// Spends a persistent watch with its first event.
    PersistentOnce = "persistent-once", by ["persistent-watches"], when "nothing: clients with persistent watches follow what changes often";
    /// Sends events after the replies with their changes.
    EventAfterReply = "event-after-reply", by ["event-before-reply"], when "nothing: clients watch what they read and write";
    /// Sets the watches of a returning client without sending the missed events.
    MissedEventsForgotten = "missed-events-forgotten", by ["watches", "in-time"], when "a client that watches is cut off during the change";
    /// Does not notify a returning client of a znode created meanwhile.
    MissedCreationForgotten = "missed-creation-forgotten", by ["watches"], when "a client that waits for a znode is cut off while it is created";
    /// Notifies no waiter of a grant.
    LoseNotices = "lose-notices", by ["in-time"], when "nothing: locks are contended";
    /// Applies an acquire without its minimum hold: a release frees the lock at once.
    MinHoldForgotten = "min-hold-forgotten", by ["minimum-hold", "replica-equality", "mutual-exclusion-of-beliefs"], when "nothing: a client gives a lock back before its minimum hold is over";
    /// Gives holders a second, regardless of the question's deadline.
    AskRevokesAtOnce = "ask-revokes-at-once", by ["questions", "in-time"], when "nothing: a client asks for a lock with a deadline";

    // The client.

    /// Believes in its session until a server denies it (kazoo's `is_acquired`).
    IgnoreDeadline = "ignore-deadline", by ["mutual-exclusion"], when "a holder is cut off for longer than its timeout";
    /// Counts the local deadline from the receipt of a heartbeat's reply, not from the sending of the
    /// heartbeat.
    DeadlineFromReceipt = "deadline-from-receipt", by ["session-expiry", "mutual-exclusion"], when "a holder is paused for longer than its timeout while a heartbeat's answer is under way";
    /// Treats every reply as a proof of the session.
    AnyReplyCounts = "any-reply-counts", by ["mutual-exclusion"], when "a node is cut off together with a client that keeps reading";
    /// Checks the deadline only in the background task, not on a call.
    LostOnlyWhenTold = "lost-only-when-told", by ["mutual-exclusion"], when "a holder is paused for longer than its timeout";
    /// Does not notify its guards when the runtime of its task ends.
    StopUnseen = "stop-unseen", by ["mutual-exclusion"], when "the runtime of a holder's client ends while the holder works on";
    /// Does not register its watches on a new connection.
    WatchesNotRegistered = "watches-not-registered", by ["watches", "in-time"], when "a client that watches loses its connection";
    /// Reports a lock as held by its own belief, without a request to the log.
    VerifyByBelief = "verify-by-belief", by ["linearizable-verify"], when "a hold has ended in the log, and the holder asks before it hears of it";
    /// Sends a write again under a new number.
    FreshNumberOnResend = "fresh-number-on-resend", by ["exactly-once"], when "connections break while writes are under way";
    /// Acknowledges the outcomes of all sent writes, answered or not.
    AckUnanswered = "ack-unanswered", by ["exactly-once", "linearizable-writes"], when "connections break while several writes are under way";
    /// Retries an acquire of unknown outcome under a new name.
    FreshNameOnRetry = "fresh-name-on-retry", by ["in-time", "exactly-once"], when "a waiter loses its connection";
    /// Does not repeat its request after a reconnect, although the grant's notice may be lost (Redisson
    /// 3891).
    TrustOldPush = "trust-old-push", by ["in-time"], when "a waiter is cut off while it is granted the lock";
    /// Treats any wake-up as the grant.
    GrantOnWake = "grant-on-wake", by ["mutual-exclusion", "fifo-in-real-time"], when "a waiter loses its connection";
    /// Derives the fencing token from the number in the znode's name, which restarts with its parent.
    TokenFromName = "token-from-name", by ["fencing-monotonic", "fifo-in-real-time"], when "a lock's znode is deleted and created again";

    // Rules of locks.

    /// Compares the prefix of a rule without its boundary: a rule for `/ci/*` names `/city` too.
    PrefixWithoutBoundary = "prefix-without-boundary", by ["may-do", "may-see", "the-oracle-agrees"], when "nothing: the name of one folder of locks begins with that of another";
    /// Goes by the first rules after an operator has changed them.
    FirstRulesStay = "first-rules-stay", by ["may-do", "may-see", "the-oracle-agrees"], when "nothing: an operator changes the rules";
    /// Answers reads of znodes whose ACLs forbid them.
    ReadsIgnoreAcls = "reads-ignore-acls", by ["may-see"], when "nothing: a znode's ACL is closed";
    /// Sends watch events about znodes that the client may not read.
    EventsIgnoreAcls = "events-ignore-acls", by ["may-see"], when "nothing: a znode with a closed ACL changes";
    /// Forces releases for clients that may take the lock.
    ForceAsksForTake = "force-asks-for-take", by ["may-do", "the-oracle-agrees"], when "nothing: a client forces a lock that it may only take";

    // Clients by HTTP.

    /// A node treats a repeated acquire by HTTP as a new acquire.
    RequestIdIgnored = "request-id-ignored", by ["in-time"], when "nothing: clients by HTTP that wait ask again";
    /// A node answers a keepalive by HTTP before the leader has recorded the keepalive.
    KeepAliveUnnoted = "keep-alive-unnoted", by ["session-expiry", "mutual-exclusion"], when "a node is cut off, or the leader changes, while a lease holds a lock";
    /// A request by HTTP that waits for a lock hears of no grant before the end of its wait.
    NoticesUnread = "notices-unread", by ["in-time"], when "nothing: clients by HTTP wait for locks";
    /// A leader that stops on request hands nothing over.
    StopWithoutHandOver = "stop-without-hand-over", by ["in-time"], when "an operator stops a leader";
    /// The pauses between a client's attempts to connect grow for as long as its session lasts.
    PauseStays = "pause-stays", by ["in-time"], when "a client loses its connection again and again";
    /// A connection's turn lasts until its input is exhausted.
    TurnsWithoutEnd = "turns-without-end", by ["in-time"], when "a client sends requests faster than its node answers them";
    /// A node forwards writes to the leader in the order of their arrival, regardless of the connection.
    FirstComeFirstServed = "first-come-first-served", by ["in-time"], when "some connections write faster than the leader takes it";
    /// A node forgets the outcomes of releases by HTTP.
    ReleaseForgotten = "release-forgotten", by ["exactly-once"], when "the answer to a release gets lost, or its copies meet";
}

/// True if the feature `mutants` is on.
pub const AVAILABLE: bool = cfg!(feature = "mutants");

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A deliberate mistake of a simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    Mutant(Mutant),
    /// A guard decides the opposite.
    Flip(Guard),
}

impl Mistake {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mistake::Mutant(mutant) => mutant.name(),
            Mistake::Flip(guard) => guard.name(),
        }
    }

    fn mutant(self) -> Option<Mutant> {
        match self {
            Mistake::Mutant(mutant) => Some(mutant),
            Mistake::Flip(_) => None,
        }
    }

    fn guard(self) -> Option<Guard> {
        match self {
            Mistake::Mutant(_) => None,
            Mistake::Flip(guard) => Some(guard),
        }
    }
}

impl From<Mutant> for Mistake {
    fn from(mutant: Mutant) -> Self {
        Mistake::Mutant(mutant)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for an unknown name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMistake(String);

impl fmt::Display for UnknownMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no mutant and no guard called {:?}", self.0)
    }
}

impl std::error::Error for UnknownMistake {}

impl FromStr for Mistake {
    type Err = UnknownMistake;

    fn from_str(name: &str) -> Result<Self, UnknownMistake> {
        let mutant = Mutant::ALL.iter().find(|mutant| mutant.name() == name).copied();
        let found = mutant.map(Mistake::Mutant).or_else(|| Guard::find(name).map(Mistake::Flip));
        found.ok_or_else(|| UnknownMistake(name.to_owned()))
    }
}

thread_local! {
    static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Restores the previous choice on a drop.
#[must_use]
pub struct Chosen {
    before: Option<Mutant>,
    _flipped: Flipped,
    // Not `Send`: the choice belongs to the current thread.
    _here: PhantomData<*const ()>,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        CHOSEN.set(self.before);
    }
}

/// Makes all code of this thread make the mistake, or no mistake for `None`.
///
/// # Panics
/// If `mistake` is set and the feature `mutants` is off: a simulation without findings would pass for a
/// search.
pub fn with(mistake: Option<Mistake>) -> Chosen {
    assert!(AVAILABLE || mistake.is_none(), "this build makes no mistakes: build with --features mutants");
    let before = CHOSEN.replace(mistake.and_then(Mistake::mutant));
    Chosen { before, _flipped: guard::flip(mistake.and_then(Mistake::guard)), _here: PhantomData }
}

/// Returns true if the code of this thread must make the mistake.
#[cfg(feature = "mutants")]
#[inline]
pub fn is(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Returns false: this build makes no mistakes.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is(_: Mutant) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_is_found_by_its_name_and_no_name_comes_twice() {
        for mutant in Mutant::ALL {
            assert_eq!(mutant.name().parse(), Ok(Mistake::Mutant(*mutant)));
            assert!(!mutant.what().is_empty() && !mutant.when().is_empty());
        }
        let guard = Guard::all().next().unwrap();
        assert_eq!(guard.name().parse(), Ok(Mistake::Flip(guard)));
        let unknown = "perfection".parse::<Mistake>().unwrap_err().to_string();
        assert_eq!(unknown, "there is no mutant and no guard called \"perfection\"");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_mistake_is_made_as_long_as_it_is_chosen() {
        assert!(!is(Mutant::IgnoreFailedFlush));
        let outer = with(Some(Mutant::IgnoreFailedFlush.into()));
        {
            let _inner = with(None);
            assert!(!is(Mutant::IgnoreFailedFlush));
        }
        assert!(is(Mutant::IgnoreFailedFlush) && !is(Mutant::AckBeforeFlush));
        drop(outer);
        assert!(!is(Mutant::IgnoreFailedFlush));
    }

    #[cfg(not(feature = "mutants"))]
    #[test]
    #[should_panic(expected = "makes no mistakes")]
    fn a_production_build_refuses_to_make_mistakes() {
        let _ = with(Some(Mutant::IgnoreFailedFlush.into()));
    }
}
