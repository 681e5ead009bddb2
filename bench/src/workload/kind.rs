//! The workloads by name: what the command line and the plan choose from, and the one place that calls them.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;

use super::uncontended::Times;
use super::{contended, crash, herd, leader_kill, read_mostly, uncontended};
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Something that can be measured of a system, at several sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// N clients, a lock each.
    Uncontended,
    /// K clients, one lock.
    Contended,
    /// N clients, ten reads to one write of plain data.
    ReadMostly,
    /// N clients wait for one lock.
    Herd,
    /// Holders die; the size is their session timeout in milliseconds.
    Crash,
    /// The leader is killed; the size is 1.
    LeaderKill,
}

impl Workload {
    /// All of them, in the order in which a run takes them.
    pub const ALL: [Workload; 6] = [
        Workload::Uncontended,
        Workload::Contended,
        Workload::ReadMostly,
        Workload::Herd,
        Workload::Crash,
        Workload::LeaderKill,
    ];

    /// As on the command line and in the files.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Uncontended => "uncontended",
            Workload::Contended => "contended",
            Workload::ReadMostly => "read-mostly",
            Workload::Herd => "herd",
            Workload::Crash => "crash",
            Workload::LeaderKill => "leader-kill",
        }
    }

    /// Whether the workload says anything about this system.
    pub fn applies(self, system: System) -> bool {
        match self {
            Workload::Uncontended | Workload::Contended | Workload::Crash => true,
            // Whoever polls is not woken at all; a Redis has no leader, and its data is compared with nobody's.
            Workload::ReadMostly | Workload::Herd | Workload::LeaderKill => system.is_fair(),
        }
    }

    /// Whether a trial needs servers that have done nothing before.
    pub fn wants_fresh_servers(self) -> bool {
        match self {
            Workload::Uncontended
            | Workload::Contended
            | Workload::ReadMostly
            | Workload::Herd
            | Workload::Crash
            | Workload::LeaderKill => false,
        }
    }

    /// One trial. Whatever it does to the servers (ending one, too) it has mended when it returns.
    ///
    /// # Errors
    /// The system broke a promise, refused or cut off a client: there is no figure then, and the servers are not to be
    /// used any more.
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
            Workload::Uncontended => uncontended::run(system, servers, count, round, times).await,
            Workload::Contended => contended::run(system, servers, count, round, times).await,
            Workload::ReadMostly => read_mostly::run(system, servers, count, round, times).await,
            Workload::Herd => herd::run(system, servers, count, round).await,
            Workload::Crash => crash::run(system, servers, size, round).await,
            Workload::LeaderKill => leader_kill::run(system, servers, round).await,
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
