//! Faults for a run, by name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rowlock_env::mutant::Mutant;
use rowlock_world::time::Nanos;

use super::shape::Shape;
use crate::fault::{Ground, Mix, Script, WEIGHTED, generate, generate_cuts, seed_of_weighted};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// All faults within the promises: half of the seeds choose some kinds, the other half draw one of
    /// [`WEIGHTED`].
    #[default]
    All,
    /// Nodes lose their data and return under their old numbers.
    Wiped,
    /// Backups are restored, and last nodes become clusters of one.
    Life,
    /// Lasting cuts of many shapes, most of which leave a connected quorum.
    Cuts,
    /// Nodes that acknowledge entries about locks before the flush lose power, one, a majority or all of
    /// them, and are cut off, killed and stopped in between.
    Blackouts,
    /// Floods of requests, and slow processors.
    Floods,
    Calm,
    /// More faults than the promises allow: the cluster may stop, but must not give wrong answers.
    OverBudget,
}

/// Start of the faults. Before, while the cluster comes up, the network is slow or a node dies at most.
const BEGIN: Duration = Duration::from_secs(2);
/// Period at the end of the load without faults, as far as faults end.
const QUIET: Duration = Duration::from_secs(5);

impl Scenario {
    pub const ALL: [Scenario; 8] = [
        Scenario::All,
        Scenario::Wiped,
        Scenario::Life,
        Scenario::Cuts,
        Scenario::Blackouts,
        Scenario::Floods,
        Scenario::Calm,
        Scenario::OverBudget,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::All => "all",
            Scenario::Wiped => "wiped",
            Scenario::Life => "life",
            Scenario::Cuts => "cuts",
            Scenario::Blackouts => "blackouts",
            Scenario::Floods => "floods",
            Scenario::Calm => "calm",
            Scenario::OverBudget => "over-budget",
        }
    }

    /// Returns the faults of `seed` in a run of `seconds` seconds.
    pub fn script(self, seed: u64, seconds: u64, shape: &Shape, clients: usize) -> Script {
        let mix = match self {
            Scenario::All => Mix::drawn(seed),
            Scenario::Wiped => Mix::wiped(),
            Scenario::Life => Mix::life(),
            Scenario::Blackouts => Mix::blackouts(),
            Scenario::Floods => Mix::floods(),
            Scenario::Cuts | Scenario::Calm => Mix::calm(),
            Scenario::OverBudget => Mix::all().over_budget(),
        };
        let begin = Nanos::default() + BEGIN;
        let end = Nanos::from_millis(seconds * 1_000);
        let quiet = Nanos(end.0.saturating_sub(Nanos::default().0 + QUIET.as_nanos() as u64)).max(begin);
        let (nodes, learners, least_voters) = (shape.voters, shape.learners, shape.removes_down_to());
        let ground = Ground { nodes, learners, least_voters, clients, begin, quiet };
        if self == Scenario::Cuts { generate_cuts(seed, &ground) } else { generate(seed, &ground, &mix) }
    }

    /// Returns whether fresh clients request service during faults. Probes draw from the world's randomness;
    /// only these scenarios send probes, so that seeds of all remaining scenarios keep their runs.
    pub(super) fn sends_probes(self) -> bool {
        matches!(self, Scenario::All | Scenario::Cuts)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Scenario {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = Scenario::ALL.into_iter().find(|scenario| scenario.name() == text);
        known.ok_or_else(|| {
            let names: Vec<&str> = Scenario::ALL.iter().map(|scenario| scenario.name()).collect();
            format!("no scenario {text}; there are {}", names.join(", "))
        })
    }
}

/// Faults by name: those of a scenario, or those of the seeds of [`Scenario::All`] that draw one of
/// [`WEIGHTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Faults(&'static str);

impl Faults {
    pub fn all() -> impl Iterator<Item = Faults> {
        let scenarios = Scenario::ALL.into_iter().map(Faults::from);
        scenarios.chain(WEIGHTED.iter().map(|(name, _)| Faults(name)))
    }

    /// Returns the faults that reveal a mutant soonest.
    pub fn that_show(mutant: Mutant) -> Faults {
        use Mutant as M;
        Faults(match mutant {
            M::AckBeforeFlush | M::IgnoreFailedFlush | M::VoteInMemory => "power",
            M::RenameWithoutDirSync | M::ChecksumIgnored | M::LeaderRestore => "power",
            M::RecycleWithoutDirSync => "power",
            M::VotesThoughForgotten | M::AdmittedAtOnce | M::MarkOverwritten | M::BootIdByPrefix => {
                "blackouts"
            }
            M::FailedFlushUnmarked | M::MixedClass => "blackouts",
            M::VotesWithoutRestart => "blackouts",
            M::RestartKeepsTokens
            | M::RestartKeepsSessions
            | M::RestartWithoutGrace
            | M::GraceNotRepeated => "blackouts",
            M::DamageIsTorn => "all",
            M::HeartbeatsWithoutQuorum => "cuts",
            M::GateByRelease => "machines",
            M::AnyFolderWillDo | M::ReadmitAVoter => "wiped",
            M::ElectionsDoNotWait
            | M::ForwardOfAnyTerm
            | M::AttachFromAnywhere
            | M::SnapshotKeepsConnections => "leaders",
            M::RestoreKeepsId | M::RestoreKeepsZxid => "life",
            M::RestoreKeepsSessions | M::RestoreWithoutGrace => "life",
            M::DigestsNotJudged => "calm",
            M::ExpireATickEarly | M::MissedCreationForgotten => "clients",
            M::AnswerUnreported => "isolation",
            M::NobodyForgiven => "stalls",
            M::ForwardAgain => "network",
            M::TruncateInMemory | M::CommittedTooHigh | M::VoteForStaleLog => "power",
            M::SnapshotNotFlushed | M::ForgetWhoWaits => "power",
            M::SkipEntryAfterSnapshot | M::SnapshotForgetsOutcomes | M::KeepOldDeadlines => "members",
            M::ConflictTakenForSuccess | M::SyncIsLocal => "network",
            M::ServeWithoutQuorum | M::PongByItself => "isolation",
            M::StampByWallClock => "isolation",
            M::ApplyByLocalClock
            | M::SilentlyDiffers
            | M::ReorderBatch
            | M::EventAfterReply
            | M::LoseNotices => "calm",
            M::OvertakenApplied => "all",
            M::TokenFromName => "calm",
            M::RunAgain | M::ExpireEarly | M::MissedEventsForgotten => "clients",
            M::IgnoreDeadline | M::DeadlineFromReceipt | M::LostOnlyWhenTold => "pauses",
            M::AnyReplyCounts => "pauses",
            M::AnswerCountsForLater => "stalls",
            M::WatchesNotRegistered | M::FreshNumberOnResend => "clients",
            M::AckUnanswered | M::FreshNameOnRetry | M::TrustOldPush | M::GrantOnWake => "clients",
            M::StopUnseen | M::PauseStays => "clients",
            M::AskRevokesAtOnce | M::MinHoldForgotten => "calm",
            M::VerifyByBelief => "clients",
            M::PersistentOnce => "calm",
            M::RequestIdIgnored | M::NoticesUnread => "calm",
            M::StopWithoutHandOver => "life",
            M::ReadsIgnoreAcls | M::EventsIgnoreAcls => "calm",
            M::PrefixWithoutBoundary | M::FirstRulesStay | M::ForceAsksForTake => "calm",
            M::KeepAliveUnnoted => "isolation",
            M::ReleaseForgotten => "clients",
            M::TurnsWithoutEnd | M::FirstComeFirstServed => "floods",
        })
    }

    pub fn name(self) -> &'static str {
        self.0
    }

    pub fn scenario(self) -> Scenario {
        self.0.parse().unwrap_or_default()
    }

    /// Returns the `nth` seed with these faults, counted from the first one that is `from` or above.
    pub fn seed(self, from: u64, nth: u64) -> u64 {
        match WEIGHTED.iter().position(|(name, _)| *name == self.0) {
            Some(index) => seed_of_weighted(index, from, nth),
            None => from + nth,
        }
    }
}

impl From<Scenario> for Faults {
    fn from(scenario: Scenario) -> Self {
        Faults(scenario.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::weighted_by;

    #[test]
    fn every_mutant_has_known_faults_and_each_seed_draws_its_name() {
        let known: Vec<Faults> = Faults::all().collect();
        assert!(Mutant::ALL.iter().all(|mutant| known.contains(&Faults::that_show(*mutant))));
        for (index, (name, _)) in WEIGHTED.iter().enumerate() {
            let faults = known.iter().find(|faults| faults.name() == *name).expect("is known");
            assert_eq!(faults.scenario(), Scenario::All);
            let seeds: Vec<u64> = (0..3).map(|nth| faults.seed(7, nth)).collect();
            let expected: Vec<u64> = (7..).filter(|seed| weighted_by(*seed) == Some(index)).take(3).collect();
            assert_eq!(seeds, expected, "{name}");
        }
        assert_eq!(Faults::from(Scenario::Calm).seed(7, 2), 9);
    }
}
