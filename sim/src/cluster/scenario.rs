//! Named mixes of faults for a run.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rowlock_env::mutant::Mutant;
use rowlock_world::time::Nanos;

use super::shape::Shape;
use crate::fault::{Ground, Mix, Script, generate, generate_cuts};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// All faults within the promises; each seed chooses some of these.
    #[default]
    All,
    Network,
    /// Single nodes are cut off for long.
    Isolation,
    /// Processes, machines, disks and clocks only.
    Machines,
    /// Nodes lose power, sometimes all at once.
    Power,
    /// Clients lose their connections, are paused and die, at a high rate.
    Clients,
    Pauses,
    /// Nodes are paused, often until another node leads.
    Stalls,
    /// Nodes lose their data and return under their old numbers.
    Wiped,
    /// Nodes come back with an older copy of their data.
    Restored,
    /// Backups are restored, and last nodes become clusters of one.
    Life,
    /// Changes of members and leaders.
    Members,
    /// Leaders lose their leadership and regain the lead; links between nodes are slow.
    Leaders,
    /// Lasting cuts of many shapes, most of which leave a connected quorum.
    Cuts,
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
    pub const ALL: [Scenario; 17] = [
        Scenario::All,
        Scenario::Network,
        Scenario::Isolation,
        Scenario::Machines,
        Scenario::Power,
        Scenario::Clients,
        Scenario::Pauses,
        Scenario::Stalls,
        Scenario::Wiped,
        Scenario::Restored,
        Scenario::Life,
        Scenario::Members,
        Scenario::Leaders,
        Scenario::Cuts,
        Scenario::Floods,
        Scenario::Calm,
        Scenario::OverBudget,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::All => "all",
            Scenario::Network => "network",
            Scenario::Isolation => "isolation",
            Scenario::Machines => "machines",
            Scenario::Power => "power",
            Scenario::Clients => "clients",
            Scenario::Pauses => "pauses",
            Scenario::Stalls => "stalls",
            Scenario::Wiped => "wiped",
            Scenario::Restored => "restored",
            Scenario::Life => "life",
            Scenario::Members => "members",
            Scenario::Leaders => "leaders",
            Scenario::Cuts => "cuts",
            Scenario::Floods => "floods",
            Scenario::Calm => "calm",
            Scenario::OverBudget => "over-budget",
        }
    }

    /// Returns the scenario that reveals a mutant soonest.
    pub fn that_shows(mutant: Mutant) -> Scenario {
        use Mutant as M;
        match mutant {
            M::AckBeforeFlush | M::IgnoreFailedFlush | M::VoteInMemory => Scenario::Power,
            M::RenameWithoutDirSync | M::ChecksumIgnored | M::LeaderRestore => Scenario::Power,
            M::RecycleWithoutDirSync => Scenario::Power,
            M::DamageIsTorn => Scenario::All,
            M::HeartbeatsWithoutQuorum => Scenario::Cuts,
            M::GateByRelease => Scenario::Machines,
            M::AnyFolderWillDo | M::ReadmitAVoter => Scenario::Wiped,
            M::ElectionsDoNotWait
            | M::ForwardOfAnyTerm
            | M::AttachFromAnywhere
            | M::SnapshotKeepsConnections => Scenario::Leaders,
            M::RestoreKeepsId | M::RestoreKeepsZxid => Scenario::Life,
            M::RestoreKeepsSessions | M::RestoreWithoutGrace => Scenario::Life,
            M::DigestsNotJudged => Scenario::Calm,
            M::ExpireATickEarly | M::MissedCreationForgotten => Scenario::Clients,
            M::AnswerUnreported => Scenario::Isolation,
            M::NobodyForgiven => Scenario::Stalls,
            M::ForwardAgain => Scenario::Network,
            M::TruncateInMemory | M::CommittedTooHigh | M::VoteForStaleLog => Scenario::Power,
            M::SnapshotNotFlushed | M::ForgetWhoWaits => Scenario::Power,
            M::SkipEntryAfterSnapshot | M::SnapshotForgetsOutcomes | M::KeepOldDeadlines => Scenario::Members,
            M::ConflictTakenForSuccess | M::SyncIsLocal => Scenario::Network,
            M::ServeWithoutQuorum | M::PongByItself => Scenario::Isolation,
            M::StampByWallClock => Scenario::Isolation,
            M::ApplyByLocalClock
            | M::SilentlyDiffers
            | M::ReorderBatch
            | M::EventAfterReply
            | M::LoseNotices => Scenario::Calm,
            M::OvertakenApplied => Scenario::All,
            M::TokenFromName => Scenario::Calm,
            M::RunAgain | M::ExpireEarly | M::MissedEventsForgotten => Scenario::Clients,
            M::IgnoreDeadline | M::DeadlineFromReceipt | M::LostOnlyWhenTold => Scenario::Pauses,
            M::AnyReplyCounts => Scenario::Pauses,
            M::AnswerCountsForLater => Scenario::Stalls,
            M::WatchesNotRegistered | M::FreshNumberOnResend => Scenario::Clients,
            M::AckUnanswered | M::FreshNameOnRetry | M::TrustOldPush | M::GrantOnWake => Scenario::Clients,
            M::StopUnseen => Scenario::Clients,
            M::AskRevokesAtOnce | M::MinHoldForgotten => Scenario::Calm,
            M::VerifyByBelief => Scenario::Clients,
            M::PersistentOnce => Scenario::Calm,
            M::RequestIdIgnored => Scenario::Calm,
            M::PrefixWithoutBoundary | M::FirstRulesStay | M::ForceAsksForTake => Scenario::Calm,
            M::KeepAliveUnnoted => Scenario::Isolation,
            M::ReleaseForgotten => Scenario::Clients,
            M::TurnsWithoutEnd | M::FirstComeFirstServed => Scenario::Floods,
        }
    }

    /// Returns the faults of `seed` in a run of `seconds` seconds.
    pub fn script(self, seed: u64, seconds: u64, shape: &Shape, clients: usize) -> Script {
        let mix = match self {
            Scenario::All => Mix::all(),
            Scenario::Network => Mix::network(),
            Scenario::Isolation => Mix::isolation(),
            Scenario::Machines => Mix::machines(),
            Scenario::Power => Mix::power(),
            Scenario::Clients => Mix::clients(),
            Scenario::Pauses => Mix::pauses(),
            Scenario::Stalls => Mix::stalls(),
            Scenario::Wiped => Mix::wiped(),
            Scenario::Restored => Mix::restored(),
            Scenario::Life => Mix::life(),
            Scenario::Members => Mix::members(),
            Scenario::Leaders => Mix::leaders(),
            Scenario::Floods => Mix::floods(),
            Scenario::Cuts | Scenario::Calm => Mix::calm(),
            Scenario::OverBudget => Mix::all().over_budget(),
        };
        let begin = Nanos::default() + BEGIN;
        let end = Nanos::from_millis(seconds * 1_000);
        let quiet = Nanos(end.0.saturating_sub(Nanos::default().0 + QUIET.as_nanos() as u64)).max(begin);
        let ground = Ground { nodes: shape.voters, learners: shape.learners, clients, begin, quiet };
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
