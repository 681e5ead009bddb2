//! Deliberate mistakes. The simulation must find each of them: that shows that its checkers and faults reach far
//! enough. Most are mistakes that other lock services have made.

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
}

/// All of them.
pub const MUTANTS: [Mutant; 13] = [
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
];
