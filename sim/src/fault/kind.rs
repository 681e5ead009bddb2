//! The kinds of faults: their names in scripts and figures, and which ones the generator may choose.

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is described at the fault of its name")]
pub enum Kind {
    Partition,
    OneWay,
    Bridge,
    Isolate,
    Clog,
    Lose,
    Reset,
    Kill,
    PowerLoss,
    Pause,
    ClockRate,
    ClockJump,
    SlowDisk,
    SyncFailure,
    DiskFull,
    BitRot,
    LoseDisk,
    Wipe,
    RotTail,
    Restore,
    AddLearner,
    AddVoter,
    Remove,
    Transfer,
    Regain,
    FallBehind,
    DieWaiting,
    Disconnect,
    EndRuntime,
    ReturnFromMain,
}

impl Kind {
    /// All of them, in the order in which figures list them.
    pub const ALL: [Kind; 30] = [
        Kind::Partition,
        Kind::OneWay,
        Kind::Bridge,
        Kind::Isolate,
        Kind::Clog,
        Kind::Lose,
        Kind::Reset,
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
        Kind::Wipe,
        Kind::RotTail,
        Kind::Restore,
        Kind::AddLearner,
        Kind::AddVoter,
        Kind::Remove,
        Kind::Transfer,
        Kind::Regain,
        Kind::FallBehind,
        Kind::DieWaiting,
        Kind::Disconnect,
        Kind::EndRuntime,
        Kind::ReturnFromMain,
    ];

    /// The word that stands for it in a script.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Partition => "partition",
            Kind::OneWay => "one-way",
            Kind::Bridge => "bridge",
            Kind::Isolate => "isolate",
            Kind::Clog => "clog",
            Kind::Lose => "lose",
            Kind::Reset => "reset",
            Kind::Kill => "kill",
            Kind::PowerLoss => "power-loss",
            Kind::Pause => "pause",
            Kind::ClockRate => "clock-rate",
            Kind::ClockJump => "clock-jump",
            Kind::SlowDisk => "slow-disk",
            Kind::SyncFailure => "sync-failure",
            Kind::DiskFull => "disk-full",
            Kind::BitRot => "bit-rot",
            Kind::LoseDisk => "lose-disk",
            Kind::Wipe => "wipe",
            Kind::RotTail => "rot-tail",
            Kind::Restore => "restore",
            Kind::AddLearner => "add-learner",
            Kind::AddVoter => "add-voter",
            Kind::Remove => "remove",
            Kind::Transfer => "transfer",
            Kind::Regain => "regain",
            Kind::FallBehind => "fall-behind",
            Kind::DieWaiting => "die-waiting",
            Kind::Disconnect => "disconnect",
            Kind::EndRuntime => "end-runtime",
            Kind::ReturnFromMain => "return-from-main",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A line that shows how it is written.
    pub fn example(self) -> &'static str {
        match self {
            Kind::Partition => "3s partition node1 client1 | node2 node3 for 4s",
            Kind::OneWay => "3s one-way leader -> follower1 follower2 for 4s",
            Kind::Bridge => "3s bridge node1 | node2 | node3 for 4s",
            Kind::Isolate => "3s isolate leader for 4s",
            Kind::Clog => "3s clog leader -> nodes by 100ms..400ms for 4s",
            Kind::Lose => "3s lose leader -> nodes 30% for 4s",
            Kind::Reset => "3s reset leader -> clients",
            Kind::Kill => "3s kill leader for 2s",
            Kind::PowerLoss => "3s power-loss leader at-operation 17 for 2s",
            Kind::Pause => "3s pause client1 for 15s",
            Kind::ClockRate => "3s clock-rate node1 +50000ppm for 4s",
            Kind::ClockJump => "3s clock-jump node1 -30000ms",
            Kind::SlowDisk => "3s slow-disk leader x20 for 4s",
            Kind::SyncFailure => "3s sync-failure leader for 2s",
            Kind::DiskFull => "3s disk-full follower1 for 4s",
            Kind::BitRot => "3s bit-rot follower1 3bits",
            Kind::LoseDisk => "3s lose-disk follower1",
            Kind::Wipe => "3s wipe follower1 for 2s",
            Kind::RotTail => "3s rot-tail follower1 for 2s",
            Kind::Restore => "3s restore follower1 for 2s",
            Kind::AddLearner => "3s add-learner node4",
            Kind::AddVoter => "3s add-voter node4",
            Kind::Remove => "3s remove follower1",
            Kind::Transfer => "3s transfer follower1",
            Kind::Regain => "3s regain follower1 after 100ms for 3s",
            Kind::FallBehind => "3s fall-behind follower1 for 10s",
            Kind::DieWaiting => "3s die-waiting client2 for good",
            Kind::Disconnect => "3s disconnect client2",
            Kind::EndRuntime => "3s end-runtime client2",
            Kind::ReturnFromMain => "3s return-from-main client2 for 2s",
        }
    }
}
