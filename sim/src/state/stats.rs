//! How often each thing happened: a run in which nothing happened proves nothing.

use std::fmt;
use std::ops::AddAssign;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a run, or of many.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        impl AddAssign<&Stats> for Stats {
            fn add_assign(&mut self, other: &Stats) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Display for Stats {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = [$((stringify!($name), self.$name)),*];
                let text: Vec<String> = all.iter().map(|(name, n)| format!("{name}={n}")).collect();
                f.write_str(&text.join(" "))
            }
        }
    };
}

stats! {
    /// Small things that happened.
    steps,
    /// Log entries.
    entries,
    /// Commands in them.
    commands,
    /// Commands that were refused because their session had moved or ended.
    stale_refused,
    /// Commands that came to the log twice.
    duplicates,
    /// Locks granted.
    grants,
    /// Waiters told that their predecessor is gone.
    wakes,
    /// Numbered writes that came again and had no second effect.
    repeats,
    /// Acquires that did not want to wait.
    busy,
    /// Acquires that were told another number of permits.
    limits,
    /// Acquires refused because they would have closed a circle.
    deadlocks,
    /// Readers that became writers.
    upgrades,
    /// Znodes of locks that were deleted while a lock-delay lasted.
    deleted_in_delay,
    /// Acquires for work under another one's place.
    nested,
    /// Looks of the leader at locks that were due.
    sweeps,
    /// Holders whose time was over.
    revocations,
    /// Grants pushed to their sessions.
    notices,
    /// Locks that were kept from the next after their holder's session expired.
    delays,
    /// Writes refused because their session's outcomes filled their bound.
    throttled,
    /// Sessions opened.
    sessions,
    /// Sessions attached to another connection.
    attaches,
    /// Sessions closed by their clients.
    closes,
    /// Expiries that the leader decided.
    expiries_decided,
    /// Sessions expired.
    expiries,
    /// Writes that the resources took.
    writes,
    /// Writes that the resources refused because of an old token.
    writes_fenced,
    /// Nodes crashed.
    node_crashes,
    /// Nodes restarted from their snapshot and the log.
    restarts,
    /// Snapshots written.
    snapshots,
    /// Snapshots installed on another node.
    installs,
    /// Nodes cut off.
    isolations,
    /// Changes of the leader.
    leader_changes,
    /// Connections cut.
    cuts,
    /// Clients crashed.
    client_crashes,
    /// Clients paused.
    pauses,
}
