//! Which faults a generated script may have, and how many.

use super::kind::Kind;

/// What the generator may choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    pub(super) kinds: Vec<Kind>,
    pub(super) pace: Pace,
    pub(super) subset: bool,
    pub(super) over_budget: bool,
}

/// How many faults begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each seed has its own: few, many, or a great many.
    BySeed,
    /// So many in a minute.
    PerMinute(usize),
}

/// What each seed chooses between for [`Pace::BySeed`], in faults per minute.
pub(super) const PACES: [usize; 4] = [6, 15, 30, 60];

impl Mix {
    /// Everything that the promises allow for. Each seed enables some of the kinds only: a run with all of them at once
    /// hides what a run with two of them shows (Groce et al., *Swarm testing*, 2012).
    pub fn all() -> Self {
        Mix { kinds: Kind::ALL.to_vec(), pace: Pace::BySeed, subset: true, over_budget: false }
    }

    /// Only what happens to the network.
    pub fn network() -> Self {
        Mix::only(&[
            Kind::Partition,
            Kind::OneWay,
            Kind::Bridge,
            Kind::Isolate,
            Kind::Clog,
            Kind::Lose,
            Kind::Reset,
            Kind::Disconnect,
        ])
    }

    /// Only what happens to processes, machines and clocks.
    pub fn machines() -> Self {
        Mix::only(&[
            Kind::Kill,
            Kind::PowerLoss,
            Kind::Pause,
            Kind::ClockRate,
            Kind::ClockJump,
            Kind::SlowDisk,
            Kind::SyncFailure,
            Kind::DiskFull,
            Kind::BitRot,
            Kind::LoseDisk,
        ])
    }

    /// Only what operators do, and leaders that go.
    pub fn members() -> Self {
        Mix::only(&[
            Kind::AddLearner,
            Kind::AddVoter,
            Kind::Remove,
            Kind::Transfer,
            Kind::FallBehind,
            Kind::Kill,
            Kind::Isolate,
            Kind::LoseDisk,
        ])
    }

    /// Nothing goes wrong.
    pub fn calm() -> Self {
        Mix::only(&[])
    }

    /// Only these kinds, all of them in every seed.
    pub fn only(kinds: &[Kind]) -> Self {
        Mix { kinds: kinds.to_vec(), pace: Pace::BySeed, subset: false, over_budget: false }
    }

    /// Disks of a majority may be damaged, and a majority may be gone for good: the run may stop, and must not lie.
    #[must_use]
    pub fn over_budget(mut self) -> Self {
        self.over_budget = true;
        self
    }

    /// At this pace.
    #[must_use]
    pub fn at_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }
}
