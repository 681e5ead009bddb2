//! Workloads by name, for the command line and the plan, and the one function that runs them.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;

use super::phase::Times;
use super::uncontended::Manner;
use super::wide::Growth;
use super::{
    contended, crash, herd, idle, leader_kill, overload, read_mostly, scale, snapshot, storm, uncontended,
    wide,
};
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Measurable workload of a system, at several sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// N clients, one lock each.
    Uncontended,
    /// N tasks of one program that share one client, one lock each.
    Shared,
    /// Like [`Workload::Uncontended`], without waiting for releases.
    Posted,
    /// One client with N cycles per second.
    Light,
    /// K clients, one lock.
    Contended,
    /// N clients that read ten times for each write.
    ReadMostly,
    /// One release with N waiters.
    Herd,
    /// Death of the holder; the size is the session timeout in milliseconds.
    Crash,
    /// Death of the leader; there is only one size.
    LeaderKill,
    /// N sessions without any work.
    Idle,
    /// Snapshots of N znodes.
    Snapshot,
    /// Return of N sessions after their leader's death.
    Storm,
    /// Load of N percent of the capacity, of requests with deadlines.
    Overload,
    /// Cost of a cycle beside N sessions.
    ScaleSessions,
    /// Cost of a cycle beside N znodes.
    ScaleZnodes,
    /// Cost of a hand-over in a queue of N.
    ScaleQueue,
    /// Cost of a cycle beside N watches.
    ScaleWatches,
    /// Cost of a cycle on any of N locks in one folder.
    ScaleLocks,
    /// Cost of a cycle with paths of N bytes.
    ScalePaths,
    /// Cost of a cycle with paths of N levels.
    ScaleDepth,
    /// Cost of a cycle of a session that holds N other locks.
    ScalePlaces,
}

impl Workload {
    /// Workloads in the order of a run.
    pub const ALL: [Workload; 21] = [
        Workload::Uncontended,
        Workload::Shared,
        Workload::Posted,
        Workload::Light,
        Workload::Contended,
        Workload::ReadMostly,
        Workload::Herd,
        Workload::Crash,
        Workload::LeaderKill,
        Workload::Idle,
        Workload::Snapshot,
        Workload::Storm,
        Workload::Overload,
        Workload::ScaleSessions,
        Workload::ScaleZnodes,
        Workload::ScaleQueue,
        Workload::ScaleWatches,
        Workload::ScaleLocks,
        Workload::ScalePaths,
        Workload::ScaleDepth,
        Workload::ScalePlaces,
    ];

    /// Returns the name on the command line and in the files.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Uncontended => "uncontended",
            Workload::Shared => "shared",
            Workload::Posted => "posted",
            Workload::Light => "light",
            Workload::Contended => "contended",
            Workload::ReadMostly => "read-mostly",
            Workload::Herd => "herd",
            Workload::Crash => "crash",
            Workload::LeaderKill => "leader-kill",
            Workload::Idle => "idle",
            Workload::Snapshot => "snapshot",
            Workload::Storm => "storm",
            Workload::Overload => "overload",
            Workload::ScaleSessions => "scale-sessions",
            Workload::ScaleZnodes => "scale-znodes",
            Workload::ScaleQueue => "scale-queue",
            Workload::ScaleWatches => "scale-watches",
            Workload::ScaleLocks => "scale-locks",
            Workload::ScalePaths => "scale-paths",
            Workload::ScaleDepth => "scale-depth",
            Workload::ScalePlaces => "scale-places",
        }
    }

    /// Reports whether the workload applies to this system.
    pub fn applies(self, system: System) -> bool {
        let has_leader = matches!(system, System::Rowlock | System::Zookeeper | System::Etcd);
        match self {
            Workload::Uncontended | Workload::Contended | Workload::Shared => true,
            // etcd's Lock may overtake the Unlock before.
            Workload::Posted => system != System::Etcd,
            // Redis has neither znodes with versions nor counts of messages.
            Workload::ReadMostly | Workload::Herd => has_leader || system == System::RowlockPlain,
            Workload::Crash => !matches!(system, System::RowlockPlain | System::RedisFsync),
            Workload::Light | Workload::LeaderKill | Workload::Idle => has_leader,
            Workload::Snapshot
            | Workload::Storm
            | Workload::Overload
            | Workload::ScaleSessions
            | Workload::ScaleZnodes
            | Workload::ScaleQueue
            | Workload::ScaleWatches
            | Workload::ScaleLocks
            | Workload::ScalePaths
            | Workload::ScaleDepth
            | Workload::ScalePlaces => system == System::Rowlock,
        }
    }

    /// Reports whether a trial needs fresh servers, which no later trial can use.
    pub fn wants_own_servers(self) -> bool {
        match self {
            Workload::Uncontended
            | Workload::Shared
            | Workload::Posted
            | Workload::Light
            | Workload::Contended
            | Workload::ReadMostly
            | Workload::Herd
            | Workload::Crash
            | Workload::LeaderKill => false,
            Workload::Idle
            | Workload::Snapshot
            | Workload::Storm
            | Workload::Overload
            | Workload::ScaleSessions
            | Workload::ScaleZnodes
            | Workload::ScaleQueue
            | Workload::ScaleWatches
            | Workload::ScaleLocks
            | Workload::ScalePaths
            | Workload::ScaleDepth
            | Workload::ScalePlaces => true,
        }
    }

    /// Runs one trial. Before the return, the trial repairs all its changes to shared servers (a killed
    /// server, too).
    ///
    /// # Errors
    /// The system broke a promise, or refused or cut off a client: the trial has no figure, and the servers
    /// must not be used
    /// any more.
    pub async fn run(
        self,
        system: System,
        servers: &mut Servers,
        size: u64,
        round: u32,
        times: Times,
    ) -> Result<Trial> {
        let count = usize::try_from(size)?;
        match self {
            Workload::Uncontended => {
                uncontended::run(system, servers, count, round, times, Manner::Awaited).await
            }
            Workload::Shared => uncontended::run(system, servers, count, round, times, Manner::Shared).await,
            Workload::Posted => uncontended::run(system, servers, count, round, times, Manner::Posted).await,
            Workload::Light => {
                uncontended::run(system, servers, 1, round, times, Manner::Paced { per_second: size }).await
            }
            Workload::Contended => contended::run(system, servers, count, round, times).await,
            Workload::ReadMostly => read_mostly::run(system, servers, count, round, times).await,
            Workload::Herd => herd::run(system, servers, count, round).await,
            Workload::Crash => crash::run(system, servers, size, round).await,
            Workload::LeaderKill => leader_kill::run(system, servers, round).await,
            Workload::Idle => idle::run(system, servers, count, round, times).await,
            Workload::Snapshot => snapshot::run(servers, size, round, times).await,
            Workload::Storm => storm::run(servers, count, round).await,
            Workload::Overload => overload::run(servers, size, round, times).await,
            Workload::ScaleSessions => scale::sessions(servers, size, round, times.measured).await,
            Workload::ScaleZnodes => scale::znodes(servers, size, round, times.measured).await,
            Workload::ScaleQueue => scale::queue(servers, size, round, times.measured).await,
            Workload::ScaleWatches => scale::watches(servers, size, round, times.measured).await,
            Workload::ScaleLocks => wide::run(servers, Growth::Locks, size, round, times).await,
            Workload::ScalePaths => wide::run(servers, Growth::PathBytes, size, round, times).await,
            Workload::ScaleDepth => wide::run(servers, Growth::Levels, size, round, times).await,
            Workload::ScalePlaces => wide::run(servers, Growth::Places, size, round, times).await,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Workload::ALL.into_iter().find(|workload| workload.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
            format!("there is no workload {name:?}; there are: {}", names.join(", "))
        })
    }
}
