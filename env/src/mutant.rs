//! Deliberate mistakes in whole nodes and clients, to see that the simulator finds each of them.
//!
//! Most are mistakes that lock services have made. Each is one small deviation at the place that keeps the
//! broken rule, written there as `if mutant::is(Mutant::X)`. Without the cargo feature `mutants` that is a
//! constant `false`, so a production build contains neither the test nor the mistake. With it, a simulation
//! enables at most one mistake for all nodes and clients of its world, by [`with`]. See
//! docs/decisions/mutants.md.

use std::cell::Cell;
use std::marker::PhantomData;
use std::str::FromStr;

/// Declares the mistakes: what is done wrong, its name, the promises whose checkers are to notice, and what
/// it takes to come into the open.
macro_rules! mutants {
    ($($(#[doc = $what:literal])+ $variant:ident = $name:literal, by [$($promise:literal),+], when $when:literal;)+) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $($(#[doc = $what])+ $variant,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant,)+];

            /// As it is written on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)+
                }
            }

            /// What is done wrong, in one line.
            pub fn what(self) -> &'static str {
                match self {
                    $(Mutant::$variant => concat!($($what),+).trim_ascii(),)+
                }
            }

            /// The promises of docs/guarantees.md that it breaks; their checkers are to notice.
            pub fn caught_by(self) -> &'static [&'static str] {
                match self {
                    $(Mutant::$variant => &[$($promise),+],)+
                }
            }

            /// Which faults and which work it takes to come into the open.
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

    /// Says that writes are on disk when they are only written; they are flushed with the next batch.
    AckBeforeFlush = "ack-before-flush", by ["durable"], when "all nodes lose power while writes are acknowledged";
    /// Never flushes the log.
    NeverFlush = "never-flush", by ["durable"], when "all nodes lose power, or one does more than once";
    /// Goes on after a failed flush, as if it had succeeded (fsyncgate).
    IgnoreFailedFlush = "ignore-failed-flush", by ["durable"], when "a flush fails, then power is lost";
    /// Renames files without making the names durable.
    RenameWithoutDirSync = "rename-without-dir-sync", by ["durable"], when "power is lost after a snapshot or a new segment";
    /// Does not flush a snapshot before it takes its name.
    SnapshotNotFlushed = "snapshot-not-flushed", by ["durable"], when "power is lost after a snapshot whose log is purged";
    /// Keeps its vote in memory only.
    VoteInMemory = "vote-in-memory", by ["raft"], when "a node dies during or after an election";
    /// Believes records of the log whose checksum is wrong.
    ChecksumIgnored = "checksum-ignored", by ["durable"], when "power is lost in the middle of a write that is torn";
    /// Cuts a conflicting end off the log in memory, and not on disk.
    TruncateInMemory = "truncate-in-memory", by ["durable"], when "a deposed leader with a tail of its own is restarted";
    /// Takes everything in its log for committed after a restart.
    CommittedTooHigh = "committed-too-high", by ["replica-equality"], when "a cut off leader dies with entries that nobody else has";

    /// Takes segments into use again whose old names the disk may still know.
    RecycleWithoutDirSync = "recycle-without-dir-sync", by ["durable"], when "power is lost between the taking of an old segment and the flush of its new name";
    /// A follower that is spared says that entries are on disk before they are.
    SparedAckBeforeFlush = "spared-ack-before-flush", by ["durable"], when "a spared follower loses power within a few milliseconds of entries that it was sent";
    /// Tells its vote before it is on disk.
    VoteBeforeFlush = "vote-before-flush", by ["raft"], when "a node loses power at the flush of its vote";
    /// Takes damage in the middle of the log for the end of an unfinished write.
    DamageIsTorn = "damage-is-torn", by ["durable"], when "a bit of the last segment flips, and the node is started again";

    /// Writes no record behind the last flush that says that all before it had been flushed.
    NoWitness = "no-witness", by ["durable"], when "the last entry of a log that rests rots";
    /// A node is known by its number alone, whatever data folder it comes with.
    AnyFolderWillDo = "any-folder-will-do", by ["durable"], when "a node that has acknowledged writes is wiped, and others with those writes are away";

    // The replicated state.

    /// Leaves out the log entry behind a snapshot.
    SkipEntryAfterSnapshot = "skip-entry-after-snapshot", by ["replica-equality"], when "a node begins with a snapshot, or is sent one";
    /// The outcomes of numbered writes are not in the snapshot.
    SnapshotForgetsOutcomes = "snapshot-forgets-outcomes", by ["replica-equality", "exactly-once"], when "a node begins with a snapshot, or is sent one";
    /// Applies with the clock of each node instead of the leader's stamp.
    ApplyByLocalClock = "apply-by-local-clock", by ["replica-equality"], when "nothing: clocks differ by themselves";
    /// Stamps batches with the wall clock, which is set.
    StampByWallClock = "stamp-by-wall-clock", by ["log-time", "no-lost-wakeup"], when "the wall clock of a leader jumps";
    /// Applies one entry in 300 with a time of its own, as after a flipped bit in its memory.
    SilentlyDiffers = "silently-differs", by ["replica-equality"], when "nothing: writes leave their time behind";
    /// Nodes tell each other their digests, and none that differs stops.
    DigestsNotJudged = "digests-not-judged", by ["replica-equality"], when "a replica differs: a test of the judgement itself";
    /// Runs a numbered write again that comes again.
    RunAgain = "run-again", by ["exactly-once"], when "connections break while writes are on their way";

    /// Leaves the connections open when a snapshot has skipped what they should have been told.
    SnapshotKeepsConnections = "snapshot-keeps-connections", by ["watches", "no-lost-wakeup"], when "a node with clients is sent a snapshot before it has lost touch for long";

    // Raft.

    /// A restarted leader goes on leading without an election (openraft's default).
    LeaderRestore = "leader-restore", by ["raft", "durable"], when "a leader loses power and comes back at once";
    /// Votes for candidates without a look at their log.
    VoteForStaleLog = "vote-for-stale-log", by ["durable", "raft"], when "a leader is cut off or dies while a node lags";
    /// A leader takes a follower's refusal of entries for their acceptance.
    ConflictTakenForSuccess = "conflict-taken-for-success", by ["durable", "raft"], when "a follower misses entries, or has some that nobody else has";
    /// Answers sync from the local state.
    SyncIsLocal = "sync-is-local", by ["linearizable"], when "a node lags, and its clients read behind a sync";

    // Sessions.

    /// Expires sessions after half of their timeout.
    ExpireEarly = "expire-early", by ["ephemeral-lifetime", "mutual-exclusion"], when "a client is cut off or paused for more than half of its timeout";
    /// A leader that leads again goes on with the deadlines of its former term (etcd 15247).
    KeepOldDeadlines = "keep-old-deadlines", by ["ephemeral-lifetime", "mutual-exclusion"], when "leadership goes away and comes back after longer than a session's timeout";
    /// Goes on serving, and confirming heartbeats, without contact to a quorum.
    ServeWithoutQuorum = "serve-without-quorum", by ["mutual-exclusion", "ephemeral-lifetime"], when "a leader is cut off together with clients for longer than a session's timeout";
    /// A leader takes an answer for one to later requests, too, if these reach no further into the log.
    AnswerCountsForLater = "answer-counts-for-later", by ["ephemeral-lifetime", "mutual-exclusion"], when "a leader with unread answers stands still until another one is elected";
    /// A node answers heartbeats by itself; the leader's word is not waited for.
    PongByItself = "pong-by-itself", by ["mutual-exclusion", "ephemeral-lifetime"], when "a node is cut off together with clients";

    /// Expires sessions one tick (50 ms) before their timeout.
    ExpireATickEarly = "expire-a-tick-early", by ["ephemeral-lifetime"], when "a client falls silent right behind a heartbeat, and no clock is off";
    /// Answers heartbeats whose report to the leader failed.
    AnswerUnreported = "answer-unreported", by ["session-expiry", "mutual-exclusion"], when "the way to the leader breaks while a heartbeat is reported, and stays broken";
    /// Gives sessions no time when a leader that stood still goes on.
    NobodyForgiven = "nobody-forgiven", by ["session-expiry"], when "a leader stands still for longer than a session's timeout and leads on";

    // Writes on their way.

    /// Sends batches again that the leader may have.
    ForwardAgain = "forward-again", by ["exactly-once"], when "the way to a leader that stays breaks while writes of clients without numbers are on it";
    /// Takes forwarded batches that were meant for an earlier term of the same leader.
    ForwardOfAnyTerm = "forward-of-any-term", by ["session-order"], when "a leader loses its leadership and regains it while batches are on their way to it";
    /// Forgets, when the leader changes, that somebody waits for the writes that the old one was given.
    ForgetWhoWaits = "forget-who-waits", by ["liveness"], when "the leader changes while writes are on their way to it";
    /// Applies an entry that has overtaken another one.
    OvertakenApplied = "overtaken-applied", by ["session-order", "replica-equality"], when "Raft refuses an entry of a leader and takes the next one";
    /// The writes of one batch go to the leader in reverse.
    ReorderBatch = "reorder-batch", by ["session-order"], when "clients send several writes at once";

    // Clients' conversations.

    /// Takes a session to a connection wherever it is by then, and not only from where the node knew it to
    /// be.
    AttachFromAnywhere = "attach-from-anywhere", by ["session-moves"], when "an attach is late in the log, and its client has come by another node meanwhile";

    /// Sends events after the replies that reveal them.
    EventAfterReply = "event-after-reply", by ["event-before-reply"], when "nothing: clients watch what they read and write";
    /// Arms the watches of a client that comes back without telling what it has missed.
    MissedEventsForgotten = "missed-events-forgotten", by ["watches", "no-lost-wakeup"], when "a client that watches is cut off during the change";
    /// Does not tell a client that comes back of a znode that was created meanwhile.
    MissedCreationForgotten = "missed-creation-forgotten", by ["watches"], when "a client that waits for a znode is cut off while it is created";
    /// Tells no waiter of its grant.
    LoseNotices = "lose-notices", by ["no-lost-wakeup"], when "nothing: locks are contended";

    // The client.

    /// Believes in its session as long as nobody denies it (kazoo's `is_acquired`).
    IgnoreDeadline = "ignore-deadline", by ["mutual-exclusion"], when "a holder is cut off for longer than its timeout";
    /// Counts the local deadline from the arrival of a heartbeat's answer.
    DeadlineFromReceipt = "deadline-from-receipt", by ["session-expiry", "mutual-exclusion"], when "a holder is paused for longer than its timeout while a heartbeat's answer is on its way";
    /// Takes every reply for a sign that the session lives.
    AnyReplyCounts = "any-reply-counts", by ["mutual-exclusion"], when "a node is cut off together with a client that goes on reading";
    /// Looks at the deadline only in the background task, not when asked.
    LostOnlyWhenTold = "lost-only-when-told", by ["mutual-exclusion"], when "a holder is paused for longer than its timeout";
    /// Says nothing to its guards when the runtime of its task ends.
    StopUnseen = "stop-unseen", by ["mutual-exclusion"], when "the runtime of a holder's client ends while the holder works on";
    /// Does not register its watches on a new connection.
    WatchesNotRegistered = "watches-not-registered", by ["watches", "no-lost-wakeup"], when "a client that watches loses its connection";
    /// Does not verify what it holds after it was cut off.
    HeldNotVerified = "held-not-verified", by ["mutual-exclusion"], when "a lock is taken by force while its holder is cut off for a shorter time than it works";
    /// Sends a write again under a new number.
    FreshNumberOnResend = "fresh-number-on-resend", by ["exactly-once"], when "connections break while writes are on their way";
    /// Says that it knows the outcomes of all that it has sent.
    AckUnanswered = "ack-unanswered", by ["exactly-once"], when "connections break while several writes are on their way";
    /// Asks under a new name for a place when it does not know whether it has one.
    FreshNameOnRetry = "fresh-name-on-retry", by ["no-lost-wakeup", "exactly-once"], when "a waiter loses its connection";
    /// Stays in the queue when nobody waits there any more (Curator 79, kazoo 412).
    GhostWaiter = "ghost-waiter", by ["no-lost-wakeup"], when "a waiter gives up";
    /// Does not ask again after a reconnect, although the grant's notice may be lost (Redisson 3891).
    TrustOldPush = "trust-old-push", by ["no-lost-wakeup"], when "a waiter is cut off while it is granted the lock";
    /// Takes any wake-up for the grant.
    GrantOnWake = "grant-on-wake", by ["mutual-exclusion"], when "a waiter loses its connection";
    /// Makes the fencing token of the number in the znode's name, which begins anew with its parent.
    TokenFromName = "token-from-name", by ["fencing-monotonic"], when "a lock's znode is removed and made again";
}

/// Mistakes can be chosen: the feature `mutants` is on.
pub const AVAILABLE: bool = cfg!(feature = "mutants");

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no mistake of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMutant(String);

impl std::fmt::Display for UnknownMutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no mutant called {:?}", self.0)
    }
}

impl std::error::Error for UnknownMutant {}

impl FromStr for Mutant {
    type Err = UnknownMutant;

    fn from_str(name: &str) -> Result<Self, UnknownMutant> {
        let found = Mutant::ALL.iter().find(|mutant| mutant.name() == name);
        found.copied().ok_or_else(|| UnknownMutant(name.to_owned()))
    }
}

thread_local! {
    static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// What was chosen before is chosen again when this is dropped.
#[must_use]
pub struct Chosen {
    before: Option<Mutant>,
    // Belongs to the thread that it was made on.
    _here: PhantomData<*const ()>,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        CHOSEN.set(self.before);
    }
}

/// All code of this thread makes this mistake from now on (or none).
///
/// # Panics
/// If a mistake is asked for and the feature `mutants` is off: a simulation that finds nothing would be taken
/// for one that has looked.
pub fn with(mutant: Option<Mutant>) -> Chosen {
    assert!(AVAILABLE || mutant.is_none(), "this build makes no mistakes: build with --features mutants");
    Chosen { before: CHOSEN.replace(mutant), _here: PhantomData }
}

/// Whether this mistake is to be made here and now.
#[cfg(feature = "mutants")]
#[inline]
pub fn is(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Whether this mistake is to be made here and now: never, in this build.
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
            assert_eq!(mutant.name().parse(), Ok(*mutant));
            assert!(!mutant.what().is_empty() && !mutant.when().is_empty());
        }
        let unknown = "perfection".parse::<Mutant>().unwrap_err().to_string();
        assert_eq!(unknown, "there is no mutant called \"perfection\"");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_mistake_is_made_as_long_as_it_is_chosen() {
        assert!(!is(Mutant::NeverFlush));
        let outer = with(Some(Mutant::NeverFlush));
        {
            let _inner = with(None);
            assert!(!is(Mutant::NeverFlush));
        }
        assert!(is(Mutant::NeverFlush) && !is(Mutant::AckBeforeFlush));
        drop(outer);
        assert!(!is(Mutant::NeverFlush));
    }

    #[cfg(not(feature = "mutants"))]
    #[test]
    #[should_panic(expected = "makes no mistakes")]
    fn a_production_build_refuses_to_make_mistakes() {
        let _ = with(Some(Mutant::NeverFlush));
    }
}
