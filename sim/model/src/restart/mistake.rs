//! Promises of the design, and deliberate mistakes that break a promise each.

use std::fmt;

/// Promise of the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    OneHolder,
    TokensGrow,
    ZnodesStay,
    ForgottenByRestart,
    Progress,
}

impl Promise {
    /// Returns the promise as a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Promise::OneHolder => "no two clients hold the lock",
            Promise::TokensGrow => "each grant has a larger token than all earlier grants",
            Promise::ZnodesStay => "no acknowledged write of a znode is lost",
            Promise::ForgottenByRestart => "only a restart forgets an acknowledged grant",
            Promise::Progress => "two of three voters can always grant the lock again",
        }
    }
}

/// Declares the mistakes, each with its description and the broken promise.
macro_rules! mistakes {
    ($($(#[doc = $text:literal])+ $variant:ident breaks $promise:ident;)+) => {
        /// Deliberate mistake in the rules of the design.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Mistake {
            $($(#[doc = $text])+ $variant,)+
        }

        impl Mistake {
            pub const ALL: &[Mistake] = &[$(Mistake::$variant,)+];

            /// Returns the promise broken by the mistake.
            pub fn breaks(self) -> Promise {
                match self {
                    $(Mistake::$variant => Promise::$promise,)+
                }
            }

            /// Describes the mistake in one line, without a period.
            pub fn text(self) -> &'static str {
                match self {
                    $(Mistake::$variant => concat!($($text),+).trim_matches([' ', '.']),)+
                }
            }
        }
    };
}

mistakes! {
    /// A node that has forgotten votes like a node with its whole log.
    VotesThoughForgotten breaks OneHolder;
    /// A node that has forgotten is admitted before it has the leader's last entry.
    AdmittedAtOnce breaks OneHolder;
    /// The mark of a start after a power loss says "open": killed and started, the node remembers.
    MarkOverwritten breaks OneHolder;
    /// Boot ids of two boots compare as equal, so a power loss looks like a kill.
    BootIdByPrefix breaks OneHolder;
    /// A clean stop writes "closed" before the flush, and the power is lost in between.
    ClosedBeforeFlush breaks OneHolder;
    /// A node whose flush has failed starts again without the mark "forgotten".
    FailedFlushUnmarked breaks OneHolder;
    /// Grants are acknowledged after the write although an unflushed write of a znode is before them.
    MixedClass breaks ZnodesStay;
    /// The grace is shorter than the longest session timeout.
    ShortGrace breaks OneHolder;
    /// A leader with the restart of an earlier leader in its log measures no grace.
    GraceNotRepeated breaks OneHolder;
    /// Only the restart's own leader ends the grace.
    GraceOfItsLeader breaks Progress;
    /// A restart does not raise the tokens.
    TokensNotRaised breaks TokensGrow;
    /// A node acknowledges more unflushed grants than a restart adds to the tokens.
    UnboundedUnflushed breaks TokensGrow;
    /// The entry of a restart is acknowledged before it is flushed.
    RestartNotFlushed breaks TokensGrow;
    /// Sessions survive a restart, and with them the belief of the forgotten holders.
    SessionsSurvive breaks OneHolder;
    /// A vote is sent before it is flushed.
    VoteNotFlushed breaks OneHolder;
    /// A restart's voter votes for a log of fewer entries.
    AnyLogRestarts breaks ZnodesStay;
    /// A learner's vote counts: one voter and a learner decide on a restart.
    LearnerCounts breaks ZnodesStay;
    /// Voters restart only if more of them have forgotten than may be missing (the first design).
    OnlyIfTooManyForgot breaks Progress;
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
