//! Rare branches, counted: which of them simulated runs have taken, and which never.
//!
//! A branch that no run takes is never judged by a checker. Each is listed here by name, so that a report
//! also names those that were never taken, and marked in its place as `rare::taken(Rare::X)`. Counts belong
//! to the thread, and a simulated world has one thread. Without assertions (production) the function is
//! empty.

use std::cell::Cell;
use std::ops::AddAssign;

use crate::choice::Choice;

/// Declares a list of places in the code: what happens there, and a name.
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

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $($Named::$variant => $name,)+
                }
            }

            /// Describes it in one line.
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
    /// A branch that is seldom taken.
    Rare:

    // The disk.

    /// The remains of an unfinished write are cut off the log.
    TornTail = "torn-tail";
    /// A record that had been flushed is found damaged.
    DamagedLog = "damaged-log";
    /// Log records that may not be on the disk are written again at start.
    TailWrittenAgain = "tail-written-again";
    /// An unfinished segment is removed at start.
    LeftoverRemoved = "leftover-removed";
    /// The log ends before the index that was known to be committed.
    CommittedBeyondLog = "committed-beyond-log";
    /// A segment is kept for reuse.
    SegmentRecycled = "segment-recycled";
    /// An old segment is reused.
    SegmentReused = "segment-reused";
    /// A damaged snapshot is put aside.
    SnapshotPutAside = "snapshot-put-aside";
    /// Entries are removed from the log in favor of another leader's.
    LogTruncated = "log-truncated";
    /// A flush, or a write, fails, and the node stops.
    DiskFailed = "disk-failed";
    /// The disk is full, and the log takes the room that was kept for it.
    ReserveGivenUp = "reserve-given-up";
    /// The disk is full, and the log waits for room.
    LogWaitsForRoom = "log-waits-for-room";
    /// A leader refuses what grows, since too few disks have room.
    GrowthRefusedForRoom = "growth-refused-for-room";
    /// A leader whose disk is short of room hands over to a node that has some.
    HandedOverForRoom = "handed-over-for-room";

    // Raft.

    /// A follower lacks the entry before those that it receives.
    AppendConflict = "append-conflict";
    /// A leader hears of a later leader.
    HigherVote = "higher-vote";
    /// The votes of a candidacy come too late for it.
    VotesTooLate = "votes-too-late";
    /// A node refuses a pre-vote.
    PreVoteRefused = "pre-vote-refused";
    /// A node refuses a vote.
    VoteRefused = "vote-refused";
    /// A leader transfers its leadership.
    LeaderTransferred = "leader-transferred";
    /// A snapshot has been received.
    SnapshotReceived = "snapshot-received";
    /// A snapshot replaces the state while clients are connected.
    SnapshotUnderClients = "snapshot-under-clients";
    /// A new node asks again to join.
    JoinAgain = "join-again";
    /// A node that lost its data is taken out of the members, to be taken in again.
    WipedTakenOut = "wiped-taken-out";
    /// A node that lost its data votes again.
    WipedVotesAgain = "wiped-votes-again";
    /// The leader has a wiped node vote again that an operator had added.
    WipedPromoted = "wiped-promoted";

    /// A node reads another node's digest of a log index in the log, and has its own digest of it.
    DigestsCompared = "digests-compared";
    /// The cluster has gone over to a later version, as this node applies its log.
    VersionRaised = "version-raised";

    // Writes on their way.

    /// A write whose connection is gone is skipped.
    WriterGone = "writer-gone";
    /// Writes that a leader may have received are given up: their outcome is unknown.
    WritesLostFromSight = "writes-lost-from-sight";
    /// Writes that the old leader did not receive go to the new one.
    HeldForNextLeader = "held-for-next-leader";
    /// A supposed leader refuses forwarded writes.
    ForwardRefused = "forward-refused";
    /// Forwarded writes are for an earlier term of a leader that has regained its leadership.
    ForwardOfEarlierTerm = "forward-of-earlier-term";
    /// The link to the leader breaks while writes are under way.
    ForwardLinkLost = "forward-link-lost";
    /// The link to the leader breaks while it is idle.
    ForwardLinkLostIdle = "forward-link-lost-idle";
    /// Writes cannot be forwarded at once: too many are not acknowledged, or the link has just ended.
    ForwardWindowFull = "forward-window-full";
    /// Raft refuses an entry of its leader.
    EntryRefused = "entry-refused";
    /// A refused entry is proposed again.
    EntryProposedAgain = "entry-proposed-again";
    /// An entry is skipped, because an earlier one of its leader was refused.
    EntryOvertaken = "entry-overtaken";
    /// An entry is given up at the end of its term.
    EntryGivenUp = "entry-given-up";

    // Sessions.

    /// Signs of life do not reach the leader.
    ReportFailed = "report-failed";
    /// Signs of life were meant for another leader.
    ReportOutdated = "report-outdated";
    /// A node tells of another one that is too far away for its timers.
    SlowLinkTold = "slow-link-told";
    /// A node notices that its disk does not answer.
    DiskHangs = "disk-hangs";
    /// A leader's heartbeat is answered before a flush that is under way.
    HeartbeatBeforeFlush = "heartbeat-before-flush";
    /// A heartbeat is not answered, because its session's time is over.
    HeartbeatRefused = "heartbeat-refused";
    /// A leader regains its quorum, or continues after a stall, and gives all sessions their full timeout.
    SessionsForgiven = "sessions-forgiven";
    /// A session's time has passed.
    SessionExpired = "session-expired";
    /// An expiry that took no effect is proposed again.
    ExpiryAgain = "expiry-again";
    /// A sign of life comes when the session's time is over.
    TouchTooLate = "touch-too-late";
    /// A client has hung up, and its session has a disconnect grace.
    HungUpWithGrace = "hung-up-with-grace";
    /// The report of a client's hang-up comes before that of its connection.
    HungUpEarly = "hung-up-early";

    // Conversations.

    /// A client is ahead of the node, which catches up.
    ClientAhead = "client-ahead";
    /// A client is ahead of the node, which does not catch up in time.
    ClientStillAhead = "client-still-ahead";
    /// An attach comes so late in the log that its session is elsewhere by then.
    AttachTooLate = "attach-too-late";
    /// A session moves to another connection while it has one.
    SessionMoved = "session-moved";
    /// Too many bytes wait for a client that does not read.
    OutboxOverflowed = "outbox-overflowed";
    /// A client that comes back is told of a change that it missed.
    MissedChangeTold = "missed-change-told";
    /// A client that comes back is told of a znode that was created meanwhile.
    MissedCreationTold = "missed-creation-told";
    /// A node without contact closes the connections of clients.
    StoppedServing = "stopped-serving";

    // The client.

    /// Unanswered requests are sent again on another connection.
    ClientSentAgain = "client-sent-again";
    /// A session at work moves to the leader, which has room.
    ClientInvited = "client-invited";
    /// A client asks whether it still holds its locks.
    ClientVerifiesHolds = "client-verifies-holds";
    /// A session's local deadline has passed when the application asks.
    ClientPastDeadline = "client-past-deadline";
    /// A waiter asks again after a reconnect.
    ClientAsksAgain = "client-asks-again";
    /// A waiter's place is gone.
    ClientPlaceLost = "client-place-lost";
    /// A client does not know whether it holds in another mode, of a lock that it has not lost.
    ConversionUnknown = "conversion-unknown";
}

/// Branches are counted in this build.
pub const COUNTED: bool = cfg!(debug_assertions);

/// Behind the rare branches stand the choices.
const PLACES: usize = Rare::ALL.len() + Choice::ALL.len();

thread_local! {
    static TAKEN: [Cell<u64>; PLACES] = const { [const { Cell::new(0) }; PLACES] };
}

fn count(place: usize) {
    // Not at the end of a thread.
    let _ = TAKEN.try_with(|taken| taken[place].update(|times| times + 1));
}

pub(crate) fn count_choice(choice: Choice) {
    count(Rare::ALL.len() + choice as usize);
}

/// A rare branch is taken here and now.
#[cfg(debug_assertions)]
pub fn taken(branch: Rare) {
    count(branch as usize);
}

/// A rare branch is taken here and now. This build does not count it.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn taken(_: Rare) {}

/// How often each branch was taken, and each choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Counts {
    /// Returns and resets the counts of this thread.
    pub fn take() -> Counts {
        Counts(TAKEN.with(|taken| taken.iter().map(Cell::take).collect()))
    }

    /// What it has counted since then, which is counted on.
    pub fn so_far() -> Counts {
        Counts(TAKEN.with(|taken| taken.iter().map(Cell::get).collect()))
    }

    /// How often this one was taken.
    pub fn of(&self, branch: Rare) -> u64 {
        self.0.get(branch as usize).copied().unwrap_or(0)
    }

    /// How often this choice was taken.
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
    fn a_thread_counts_what_it_takes_and_begins_anew_when_it_was_asked() {
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
