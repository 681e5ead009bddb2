//! Deliberate mistakes. The simulation must find each of them: that shows that its checkers and faults are
//! strong enough. Most are mistakes that other lock services have made.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A waiter takes its wake-up for the grant and does not look at the queue again.
    GrantOnWake,
    /// Waiters watch the holder, not their predecessor.
    WatchTheHolder,
    /// A waiter does not look again after a lost connection, although its watch is gone.
    TrustOldWatch,
    /// The leader answers pings of sessions whose expiry it has decided.
    ConfirmAfterDecision,
    /// The leader answers pings of sessions that have ended, which their lagging nodes do not know yet.
    ConfirmTheDead,
    /// The leader expires sessions after three quarters of their timeout.
    ExpireEarly,
    /// A holder does not watch its own deadline.
    IgnoreDeadline,
    /// A node loses some watch events.
    LoseEvents,
    /// A node sends events after the replies that reveal them.
    EventAfterReply,
    /// A node leaves out a log entry after a restart.
    SkipEntry,
    /// The resource does not look at fencing tokens.
    UnfencedResource,
    /// A client creates another queue member when it does not know whether the first was created.
    BlindRetry,
    /// A client asks for another session timeout each time that it re-attaches.
    VaryTimeout,
    /// A node that is given a snapshot does not know the outcomes in it.
    ForgetOutcomes,
    /// A write that comes again is run again.
    RunAgain,
    /// The cluster forgets all outcomes below the newest one, whether the client knows them or not.
    ForgetEarly,
    /// The cluster keeps outcomes without a bound.
    KeepForEver,
    /// A client says that it knows the outcomes of all that it has sent.
    AckUnanswered,
    /// A client asks under a new name for a place when it does not know whether it got it.
    FreshNameOnRetry,
    /// The cluster does not look for the place of an acquire that comes again.
    PlaceNotFound,
    /// When a place leaves the queue, a node tells the next one that it was granted the lock, even if others
    /// are before it.
    GrantToNext,
    /// A node tells all waiters of a grant.
    PushToAll,
    /// A node does not tell of some grants.
    LoseNotices,
    /// A waiter does not ask again after a lost connection, although the notice may have been lost with it.
    TrustOldPush,
    /// Lock-delays are ignored.
    ForgetLockDelay,
    /// A release gives back whatever its session holds there, without a look at the token.
    ReleaseByName,
    /// Deadlock detection does not see those who share a lock.
    DeadlockSkipsShared,
    /// Deadlock detection does not see who works under a place.
    DeadlockSkipsWorkers,
    /// Deadlock detection has readers wait for readers.
    ReadersBlockReaders,
    /// The clock of a follower, which is ahead, decides what is due.
    FollowerClock,
    /// A client does not give up what it has held for too long.
    IgnoreMaxHold,
    /// A client counts its longest hold from when it learns of the grant, and nothing else.
    MaxHoldFromLearning,
}

/// All of them.
pub const MUTANTS: [Mutant; 32] = [
    Mutant::GrantOnWake,
    Mutant::WatchTheHolder,
    Mutant::TrustOldWatch,
    Mutant::ConfirmAfterDecision,
    Mutant::ConfirmTheDead,
    Mutant::ExpireEarly,
    Mutant::IgnoreDeadline,
    Mutant::LoseEvents,
    Mutant::EventAfterReply,
    Mutant::SkipEntry,
    Mutant::UnfencedResource,
    Mutant::BlindRetry,
    Mutant::VaryTimeout,
    Mutant::ForgetOutcomes,
    Mutant::RunAgain,
    Mutant::ForgetEarly,
    Mutant::KeepForEver,
    Mutant::AckUnanswered,
    Mutant::FreshNameOnRetry,
    Mutant::PlaceNotFound,
    Mutant::GrantToNext,
    Mutant::PushToAll,
    Mutant::LoseNotices,
    Mutant::TrustOldPush,
    Mutant::ForgetLockDelay,
    Mutant::ReleaseByName,
    Mutant::DeadlockSkipsShared,
    Mutant::DeadlockSkipsWorkers,
    Mutant::ReadersBlockReaders,
    Mutant::FollowerClock,
    Mutant::IgnoreMaxHold,
    Mutant::MaxHoldFromLearning,
];
