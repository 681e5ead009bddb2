//! Rare branches with counters: simulated runs report the taken branches and the branches never taken.
//!
//! No checker can test a branch outside all runs. The list below names each rare branch, so that a report
//! also names the branches never taken; the code in the branch calls `rare::taken(Rare::X)`. Each thread has
//! its own counts, and a simulated world has a single thread. Without assertions (production) the function is
//! empty.

use std::cell::Cell;
use std::ops::AddAssign;

use crate::choice::Choice;

/// Declares a list of places in the code, each with a description and a name.
macro_rules! named {
    ($(#[$of_all:meta])+ $Named:ident:
     $($(#[doc = $what:literal])+ $variant:ident = $name:literal;)+) => {
        $(#[$of_all])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $Named {
            $($(#[doc = $what])+ $variant,)+
        }

        impl $Named {
            pub const ALL: &[$Named] = &[$($Named::$variant,)+];

            /// Returns the name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $($Named::$variant => $name,)+
                }
            }

            /// Describes the place in one line.
            pub fn what(self) -> &'static str {
                match self {
                    $($Named::$variant => concat!($($what),+).trim_ascii(),)+
                }
            }
        }
    };
}
pub(crate) use named;

named! {
    /// A rarely taken branch.
    Rare:

    // The disk.

    /// Recovery cuts the remains of an unfinished write off the log.
    TornTail = "torn-tail";
    /// Recovery finds a flushed record damaged.
    DamagedLog = "damaged-log";
    /// A start writes again the log records without a proof of their flush.
    TailWrittenAgain = "tail-written-again";
    /// A start removes an unfinished segment.
    LeftoverRemoved = "leftover-removed";
    /// The log ends before the recorded commit index.
    CommittedBeyondLog = "committed-beyond-log";
    /// The log keeps a segment for reuse.
    SegmentRecycled = "segment-recycled";
    /// The log reuses an old segment.
    SegmentReused = "segment-reused";
    /// The store renames a damaged snapshot.
    SnapshotPutAside = "snapshot-put-aside";
    /// The log removes entries in favor of another leader's entries.
    LogTruncated = "log-truncated";
    /// A flush, or a write, fails, and the node stops.
    DiskFailed = "disk-failed";
    /// A node starts and may have lost acknowledged entries with the machine's power.
    NodeHasForgotten = "node-has-forgotten";
    /// A leader has admitted a node that had forgotten entries.
    ForgetfulAdmitted = "forgetful-admitted";
    /// A leader sends entries again that a node had acknowledged and has forgotten.
    ForgottenSentAgain = "forgotten-sent-again";
    /// The log acknowledges entries about locks before their flush.
    AcknowledgedUnflushed = "acknowledged-unflushed";
    /// Voters that have forgotten entries elect a leader, and the cluster restarts.
    RestartElected = "restart-elected";
    /// A node drops a state that the cluster has left behind.
    StateDropped = "state-dropped";
    /// The leader's log is purged between Raft's decision to send entries and the read of the entries.
    PurgedBeforeRead = "purged-before-read";
    /// The disk is full, and the log uses the reserved space.
    ReserveGivenUp = "reserve-given-up";
    /// The disk is full, and the log waits for space.
    LogWaitsForRoom = "log-waits-for-room";
    /// A leader refuses growing writes, since too few disks have space.
    GrowthRefusedForRoom = "growth-refused-for-room";
    /// A leader with a full disk hands over to a node with space.
    HandedOverForRoom = "handed-over-for-room";

    // Raft.

    /// A follower lacks the entry before the received entries.
    AppendConflict = "append-conflict";
    /// A leader learns of a later leader.
    HigherVote = "higher-vote";
    /// The votes of a candidacy arrive too late.
    VotesTooLate = "votes-too-late";
    /// A node refuses a pre-vote.
    PreVoteRefused = "pre-vote-refused";
    /// A node refuses a vote.
    VoteRefused = "vote-refused";
    /// A leader transfers its leadership.
    LeaderTransferred = "leader-transferred";
    /// A node receives a snapshot.
    SnapshotReceived = "snapshot-received";
    /// A snapshot replaces the state while clients are connected.
    SnapshotUnderClients = "snapshot-under-clients";
    /// A future voter needs another round to catch up.
    CatchUpRound = "catch-up-round";
    /// A new node repeats its request to join.
    JoinAgain = "join-again";
    /// The leader removes a node without its data from the members, before adding the node again.
    WipedTakenOut = "wiped-taken-out";
    /// A node votes again after the loss of its data.
    WipedVotesAgain = "wiped-votes-again";
    /// The leader makes a wiped node a voter again after an operator has added the node.
    WipedPromoted = "wiped-promoted";

    /// A node reads another node's digest in the log, and has its own digest of the same index.
    DigestsCompared = "digests-compared";
    /// The cluster has adopted a later version, according to a node's applied log.
    VersionRaised = "version-raised";

    // Forwarded writes.

    /// A node skips a write without a connection.
    WriterGone = "writer-gone";
    /// A node gives up writes sent to a leader: their outcome is unknown.
    WritesLostFromSight = "writes-lost-from-sight";
    /// Writes not received by the old leader go to the new leader.
    HeldForNextLeader = "held-for-next-leader";
    /// A supposed leader refuses forwarded writes.
    ForwardRefused = "forward-refused";
    /// Forwarded writes are for an earlier term of the present leader.
    ForwardOfEarlierTerm = "forward-of-earlier-term";
    /// The link to the leader breaks during writes.
    ForwardLinkLost = "forward-link-lost";
    /// The link to the leader breaks while idle.
    ForwardLinkLostIdle = "forward-link-lost-idle";
    /// A node cannot forward writes at once: the window is full, or the link has just ended.
    ForwardWindowFull = "forward-window-full";
    /// Raft refuses an entry of its leader.
    EntryRefused = "entry-refused";
    /// A leader proposes a refused entry again.
    EntryProposedAgain = "entry-proposed-again";
    /// A node skips an entry, because Raft refused an earlier entry of the same leader.
    EntryOvertaken = "entry-overtaken";
    /// A leader gives up an entry at the end of its term.
    EntryGivenUp = "entry-given-up";

    // Sessions.

    /// Keepalives do not reach the leader.
    ReportFailed = "report-failed";
    /// Keepalives reach another leader than intended.
    ReportOutdated = "report-outdated";
    /// A node reports a link too slow for its timers.
    SlowLinkTold = "slow-link-told";
    /// A node detects a hanging disk.
    DiskHangs = "disk-hangs";
    /// A follower answers a leader's heartbeat during a flush.
    HeartbeatBeforeFlush = "heartbeat-before-flush";
    /// A node refuses a keepalive after the end of the session's timeout.
    HeartbeatRefused = "heartbeat-refused";
    /// A leader regains its quorum, or continues after a stall, and gives all sessions their full timeout.
    SessionsForgiven = "sessions-forgiven";
    /// The leader expires a session.
    SessionExpired = "session-expired";
    /// A leader proposes an ineffective expiry again.
    ExpiryAgain = "expiry-again";
    /// A keepalive arrives after the end of the session's timeout.
    TouchTooLate = "touch-too-late";
    /// A client with a disconnect grace hangs up.
    HungUpWithGrace = "hung-up-with-grace";
    /// The report of a client's hang-up arrives before the report of its connection.
    HungUpEarly = "hung-up-early";

    // Conversations.

    /// A client is ahead of the node, and the node catches up.
    ClientAhead = "client-ahead";
    /// A client is ahead of the node, and the node does not catch up in time.
    ClientStillAhead = "client-still-ahead";
    /// An attach is late in the log: its session has moved elsewhere.
    AttachTooLate = "attach-too-late";
    /// A session moves to another connection while attached.
    SessionMoved = "session-moved";
    /// The queued bytes for a stalled client exceed the bound.
    OutboxOverflowed = "outbox-overflowed";
    /// A returning client receives the event of a missed change.
    MissedChangeTold = "missed-change-told";
    /// A returning client receives the event of a znode created meanwhile.
    MissedCreationTold = "missed-creation-told";
    /// A node without contact closes the connections of clients.
    StoppedServing = "stopped-serving";

    // The client.

    /// A client sends unanswered requests again on another connection.
    ClientSentAgain = "client-sent-again";
    /// A busy session moves to the leader, which has capacity.
    ClientInvited = "client-invited";
    /// A client verifies its held locks.
    ClientVerifiesHolds = "client-verifies-holds";
    /// A session's local deadline has passed when the application calls.
    ClientPastDeadline = "client-past-deadline";
    /// A waiter repeats its request after a reconnect.
    ClientAsksAgain = "client-asks-again";
    /// A waiter's queue position is gone.
    ClientPlaceLost = "client-place-lost";
    /// A client does not know the mode of its held lock after a conversion.
    ConversionUnknown = "conversion-unknown";
}

/// True if this build counts branches.
pub const COUNTED: bool = cfg!(debug_assertions);

/// Number of counters: the rare branches, then the choices.
const PLACES: usize = Rare::ALL.len() + Choice::ALL.len();

thread_local! {
    static TAKEN: [Cell<u64>; PLACES] = const { [const { Cell::new(0) }; PLACES] };
}

fn count(place: usize) {
    // Does nothing at the end of a thread.
    let _ = TAKEN.try_with(|taken| taken[place].update(|times| times + 1));
}

pub(crate) fn count_choice(choice: Choice) {
    count(Rare::ALL.len() + choice as usize);
}

/// Counts a rare branch.
#[cfg(debug_assertions)]
pub fn taken(branch: Rare) {
    count(branch as usize);
}

/// Does nothing: this build has no counters.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn taken(_: Rare) {}

/// Counts of the branches, then of the choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Counts {
    /// Returns and resets the counts of this thread.
    pub fn take() -> Counts {
        Counts(TAKEN.with(|taken| taken.iter().map(Cell::take).collect()))
    }

    /// Returns the counts of this thread without a reset.
    pub fn so_far() -> Counts {
        Counts(TAKEN.with(|taken| taken.iter().map(Cell::get).collect()))
    }

    /// Returns the count of a branch.
    pub fn of(&self, branch: Rare) -> u64 {
        self.0.get(branch as usize).copied().unwrap_or(0)
    }

    /// Returns the count of a choice.
    pub fn of_choice(&self, choice: Choice) -> u64 {
        self.0.get(Rare::ALL.len() + choice as usize).copied().unwrap_or(0)
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        self.0.resize(PLACES, 0);
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_name_comes_twice() {
        let names: BTreeSet<&str> = Rare::ALL.iter().map(|branch| branch.name()).collect();
        assert_eq!(names.len(), Rare::ALL.len());
        assert!(Rare::ALL.iter().all(|branch| !branch.what().is_empty()));
    }

    #[cfg(debug_assertions)]
    #[test]
    fn counts_belong_to_the_thread_and_reset_when_taken() {
        let _ = Counts::take();
        (0..3).for_each(|_| taken(Rare::TornTail));
        std::thread::scope(|scope| drop(scope.spawn(|| taken(Rare::TornTail))));
        let mut sum = Counts::take();
        assert_eq!((sum.of(Rare::TornTail), sum.of(Rare::SessionMoved)), (3, 0));
        assert_eq!(Counts::take().of(Rare::TornTail), 0);
        sum += &sum.clone();
        assert_eq!(sum.of(Rare::TornTail), 6);
    }
}
