//! Scenarios: scripts of faults, the same for all designs.

use std::time::Duration;

use crate::TTL;

/// Declares the scenarios, in the order of the table: name, id on the command line, story.
macro_rules! scenarios {
    ($($name:ident = $id:literal, $story:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Scenario { $(#[doc = $story] $name,)* }

        impl Scenario {
            /// Scenarios in the order of the table.
            pub const ALL: [Scenario; [$($id,)*].len()] = [$(Scenario::$name,)*];

            /// Returns the name on the command line.
            pub fn id(self) -> &'static str { match self { $(Scenario::$name => $id,)* } }

            /// Returns a one-sentence description.
            pub fn story(self) -> &'static str { match self { $(Scenario::$name => $story,)* } }
        }
    };
}

scenarios! {
    Calm = "calm", "five clients, no faults";
    HolderCrash = "holder-crash", "the holder's process dies one second into its job";
    HolderPause = "holder-pause",
        "the holder stands still for twice the time to live, after its last check and before its write";
    LongJob = "long-job", "one job takes two and a half times the time to live";
    CrashBetween = "crash-between", "a client dies between two commands of acquiring";
    CutBetween = "cut-between",
        "a client is cut off for half the time to live between two commands of acquiring";
    PauseBetween = "pause-between",
        "a client stands still for twice the time to live between two commands of releasing";
    PrimaryLost = "primary-lost",
        "replication stops, a grant is given, and the server that gave it dies; it comes back half a minute later";
    Partition = "partition",
        "holder, one more client and a minority of servers with the deciding one are cut off for 25 s";
    HolderCutOff = "holder-cut-off",
        "the holder alone is cut off from the servers for 30 s, in a job of 25 s";
    ClockJump = "clock-jump", "the wall clocks that decide about expiry jump ahead by a minute, during a job";
    PowerLoss = "power-loss", "all servers lose power right after a grant and are back a second later";
    WaiterDies = "waiter-dies", "of those who wait, one in the middle dies";
    TwoClients = "two-clients", "two clients with jobs of a few milliseconds, no faults";
    HundredWaiters = "hundred-waiters", "a hundred clients with short jobs, no faults";
}

impl Scenario {
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
