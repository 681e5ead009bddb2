//! Rare branches, counted: which of them simulated runs have taken, and which never.
//!
//! A branch that no run takes is never judged by a checker. Each is listed here by name, so that a report
//! also names those that were never taken, and marked in its place as `rare::taken(Rare::X)`. Counts belong
//! to the thread, and a simulated world has one thread. Without assertions (production) the function is
//! empty.

use std::cell::Cell;
use std::ops::AddAssign;

/// Declares the branches: what happens there, and a name.
macro_rules! rare {
    ($($(#[doc = $what:literal])+ $variant:ident = $name:literal;)+) => {
        /// A branch that is seldom taken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rare {
            $($(#[doc = $what])+ $variant,)+
        }

        impl Rare {
            /// All of them.
            pub const ALL: &[Rare] = &[$(Rare::$variant,)+];

            /// As it is written in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Rare::$variant => $name,)+
                }
            }

            /// What happens there, in one line.
            pub fn what(self) -> &'static str {
                match self {
                    $(Rare::$variant => concat!($($what),+).trim_ascii(),)+
                }
            }
        }
    };
}

rare! {
    // The disk.

    /// The remains of an unfinished write are cut off the log.
    TornTail = "torn-tail";
    /// A record that had been flushed is found damaged.
    DamagedLog = "damaged-log";
    /// What may not be on the disk is written again at start.
    TailWrittenAgain = "tail-written-again";
    /// An unfinished segment is removed at start.
    LeftoverRemoved = "leftover-removed";
    /// What was known to be committed is more than what the log still has.
    CommittedBeyondLog = "committed-beyond-log";
    /// A segment is put aside to be used again.
    SegmentRecycled = "segment-recycled";
    /// A segment is made of one that was put aside.
    SegmentReused = "segment-reused";
    /// A damaged snapshot is put aside.
    SnapshotPutAside = "snapshot-put-aside";
    /// Entries are taken out of the log for another leader's.
    LogTruncated = "log-truncated";
    /// Entries wait for a flush that no quorum needs.
    FlushSpared = "flush-spared";
    /// A flush, or a write, fails, and the node stops.
    DiskFailed = "disk-failed";

    // Raft.

    /// A follower lacks what stands before the entries that it is sent.
    AppendConflict = "append-conflict";
    /// A leader hears of a later one.
    HigherVote = "higher-vote";
    /// A node would not vote for who asks.
    PreVoteRefused = "pre-vote-refused";
    /// A node does not vote for who asks.
    VoteRefused = "vote-refused";
    /// A leader hands over.
    LeaderTransferred = "leader-transferred";
    /// A spared follower turns out to have been needed.
    SparedWasNeeded = "spared-was-needed";
    /// A snapshot has been received.
    SnapshotReceived = "snapshot-received";
    /// A snapshot replaces the state under connections of clients.
    SnapshotUnderClients = "snapshot-under-clients";
    /// A new node asks to be taken in again.
    JoinAgain = "join-again";

    /// A node reads in the log what another has for the digest of a place, and has its own of it.
    DigestsCompared = "digests-compared";

    // Writes on their way.

    /// A write whose connection has gone is left out.
    WriterGone = "writer-gone";
    /// Writes that a leader may have are given up.
    WritesLostFromSight = "writes-lost-from-sight";
    /// Writes that the old leader does not have go to the new one.
    HeldForNextLeader = "held-for-next-leader";
    /// A node that is taken for the leader refuses forwarded writes.
    ForwardRefused = "forward-refused";
    /// Forwarded writes are for an earlier term of a leader that has regained its leadership.
    ForwardOfEarlierTerm = "forward-of-earlier-term";
    /// The way to the leader breaks with writes on it.
    ForwardLinkLost = "forward-link-lost";
    /// The way to the leader breaks with nothing on it.
    ForwardLinkLostIdle = "forward-link-lost-idle";
    /// Writes cannot be forwarded at once: too many are not acknowledged, or the way has just ended.
    ForwardWindowFull = "forward-window-full";
    /// Raft refuses an entry of its leader.
    EntryRefused = "entry-refused";
    /// A refused entry is proposed again.
    EntryProposedAgain = "entry-proposed-again";
    /// An entry is skipped, because an earlier one of its leader was refused.
    EntryOvertaken = "entry-overtaken";
    /// An entry is given up with its term.
    EntryGivenUp = "entry-given-up";

    // Sessions.

    /// Signs of life do not reach the leader.
    ReportFailed = "report-failed";
    /// Signs of life were for another leader.
    ReportOutdated = "report-outdated";
    /// A heartbeat is not answered, because its session's time is over.
    HeartbeatRefused = "heartbeat-refused";
    /// A leader finds its quorum again, or goes on, and forgives everybody.
    SessionsForgiven = "sessions-forgiven";
    /// A session's time has passed.
    SessionExpired = "session-expired";
    /// An expiry that took no effect is proposed again.
    ExpiryAgain = "expiry-again";
    /// A sign of life comes when the session's time is over.
    TouchTooLate = "touch-too-late";
    /// A client has hung up and asked for a short end.
    HungUpWithGrace = "hung-up-with-grace";
    /// A client's hang-up is heard of before its connection.
    HungUpEarly = "hung-up-early";

    // Conversations.

    /// A client is ahead of the node, which catches up.
    ClientAhead = "client-ahead";
    /// A client is ahead of the node, which does not get there.
    ClientStillAhead = "client-still-ahead";
    /// An attach comes so late in the log that its session is elsewhere by then.
    AttachTooLate = "attach-too-late";
    /// A session moves to another connection while it has one.
    SessionMoved = "session-moved";
    /// Too much waits for a client that does not read.
    OutboxOverflowed = "outbox-overflowed";
    /// A client that comes back is told of a change that it missed.
    MissedChangeTold = "missed-change-told";
    /// A client that comes back is told of a znode that was created meanwhile.
    MissedCreationTold = "missed-creation-told";
    /// A node without contact closes the connections of clients.
    StoppedServing = "stopped-serving";

    // The client.

    /// What was sent is sent again on another connection.
    ClientSentAgain = "client-sent-again";
    /// It is asked whether what is held is still held.
    ClientVerifiesHolds = "client-verifies-holds";
    /// A session's local deadline has passed when it is asked for.
    ClientPastDeadline = "client-past-deadline";
    /// A waiter asks again behind a reconnect.
    ClientAsksAgain = "client-asks-again";
    /// A waiter's place is gone.
    ClientPlaceLost = "client-place-lost";
}

/// Branches are counted in this build.
pub const COUNTED: bool = cfg!(debug_assertions);

thread_local! {
    static TAKEN: [Cell<u64>; Rare::ALL.len()] = const { [const { Cell::new(0) }; Rare::ALL.len()] };
}

/// A rare branch is taken here and now.
#[cfg(debug_assertions)]
pub fn taken(branch: Rare) {
    // Not at the end of a thread.
    let _ = TAKEN.try_with(|taken| taken[branch as usize].update(|times| times + 1));
}

/// A rare branch is taken here and now: nobody counts, in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn taken(_: Rare) {}

/// How often each branch was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Counts {
    /// What this thread has counted since it was last asked.
    pub fn take() -> Counts {
        Counts(TAKEN.with(|taken| taken.iter().map(Cell::take).collect()))
    }

    /// How often this one was taken.
    pub fn of(&self, branch: Rare) -> u64 {
        self.0.get(branch as usize).copied().unwrap_or(0)
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        self.0.resize(Rare::ALL.len(), 0);
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
