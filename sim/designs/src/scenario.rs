//! Scenarios: scripts of faults, the same for all designs.

use std::time::Duration;

use crate::TTL;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    Calm,
    /// The holder's process dies at work.
    HolderCrash,
    /// The holder pauses between its last check and its write, longer than the time to live.
    HolderPause,
    /// A job takes longer than the time to live.
    LongJob,
    /// A client dies between two commands of acquiring.
    CrashBetween,
    /// A client loses its connection between two commands of acquiring.
    CutBetween,
    /// A client pauses between two commands of releasing.
    PauseBetween,
    /// Replication stops, the primary grants the lock and dies.
    PrimaryLost,
    /// The holder and a minority of the servers, with the deciding server, are cut off from all others.
    Partition,
    /// The holder alone is cut off, longer than the time to live, in a long job.
    HolderCutOff,
    /// The wall clocks that decide jump ahead by a minute.
    ClockJump,
    /// All servers lose power right after a grant and come back.
    PowerLoss,
    /// A client in the middle of the queue dies.
    WaiterDies,
    /// Two clients with very short jobs: many failures happen at the moment of a hand-over.
    TwoClients,
    HundredWaiters,
}

impl Scenario {
    /// Scenarios in the order of the table.
    pub const ALL: [Scenario; 15] = [
        Scenario::Calm,
        Scenario::HolderCrash,
        Scenario::HolderPause,
        Scenario::LongJob,
        Scenario::CrashBetween,
        Scenario::CutBetween,
        Scenario::PauseBetween,
        Scenario::PrimaryLost,
        Scenario::Partition,
        Scenario::HolderCutOff,
        Scenario::ClockJump,
        Scenario::PowerLoss,
        Scenario::WaiterDies,
        Scenario::TwoClients,
        Scenario::HundredWaiters,
    ];

    /// Returns the name on the command line.
    pub fn id(self) -> &'static str {
        match self {
            Scenario::Calm => "calm",
            Scenario::HolderCrash => "holder-crash",
            Scenario::HolderPause => "holder-pause",
            Scenario::LongJob => "long-job",
            Scenario::CrashBetween => "crash-between",
            Scenario::CutBetween => "cut-between",
            Scenario::PauseBetween => "pause-between",
            Scenario::PrimaryLost => "primary-lost",
            Scenario::Partition => "partition",
            Scenario::HolderCutOff => "holder-cut-off",
            Scenario::ClockJump => "clock-jump",
            Scenario::PowerLoss => "power-loss",
            Scenario::WaiterDies => "waiter-dies",
            Scenario::TwoClients => "two-clients",
            Scenario::HundredWaiters => "hundred-waiters",
        }
    }

    /// Returns a one-sentence description.
    pub fn story(self) -> &'static str {
        match self {
            Scenario::Calm => "five clients, no faults",
            Scenario::HolderCrash => "the holder's process dies one second into its job",
            Scenario::HolderPause => {
                "the holder stands still for twice the time to live, after its last check and before its write"
            }
            Scenario::LongJob => "one job takes two and a half times the time to live",
            Scenario::CrashBetween => "a client dies between two commands of acquiring",
            Scenario::CutBetween => {
                "a client is cut off for half the time to live between two commands of acquiring"
            }
            Scenario::PauseBetween => {
                "a client stands still for twice the time to live between two commands of releasing"
            }
            Scenario::PrimaryLost => {
                "replication stops, a grant is given, and the server that gave it dies; it comes back half a minute later"
            }
            Scenario::Partition => {
                "holder, one more client and a minority of servers with the deciding one are cut off for 25 s"
            }
            Scenario::HolderCutOff => {
                "the holder alone is cut off from the servers for 30 s, in a job of 25 s"
            }
            Scenario::ClockJump => {
                "the wall clocks that decide about expiry jump ahead by a minute, during a job"
            }
            Scenario::PowerLoss => "all servers lose power right after a grant and are back a second later",
            Scenario::WaiterDies => "of those who wait, one in the middle dies",
            Scenario::TwoClients => "two clients with jobs of a few milliseconds, no faults",
            Scenario::HundredWaiters => "a hundred clients with short jobs, no faults",
        }
    }

    pub fn from_id(id: &str) -> Option<Scenario> {
        Scenario::ALL.into_iter().find(|scenario| scenario.id() == id)
    }

    pub fn clients(self) -> usize {
        match self {
            Scenario::TwoClients => 2,
            Scenario::HundredWaiters => 100,
            _ => 5,
        }
    }

    /// Returns the duration of ordinary jobs: the least, and the largest addition.
    pub fn job(self) -> (Duration, Duration) {
        match self {
            Scenario::TwoClients => (Duration::from_millis(1), Duration::from_millis(4)),
            Scenario::HundredWaiters => (Duration::from_millis(20), Duration::from_millis(10)),
            _ => (Duration::from_millis(300), Duration::from_millis(300)),
        }
    }

    /// Returns the pause of a client between two jobs: the least, and the largest addition.
    pub fn pause(self) -> (Duration, Duration) {
        match self {
            Scenario::TwoClients => (Duration::ZERO, Duration::from_millis(10)),
            _ => (Duration::from_millis(20), Duration::from_millis(180)),
        }
    }

    /// Returns the duration of a run.
    pub fn duration(self) -> Duration {
        match self {
            Scenario::Calm => Duration::from_secs(40),
            Scenario::TwoClients => Duration::from_secs(40),
            Scenario::HundredWaiters => Duration::from_secs(15),
            _ => Duration::from_secs(80),
        }
    }
}

/// Job that fits into the time to live, and is long enough for a fault to happen meanwhile.
pub const FITTING_JOB: Duration = TTL.saturating_sub(Duration::from_secs(2));
/// Job that does not fit into the time to live.
pub const LONG_JOB: Duration = Duration::from_secs(25);
