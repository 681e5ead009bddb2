//! Trials of a run and their order. Pure, so that tests can check the order.
//!
//! Systems take turns: the first round of a workload covers all sizes, and at each size all systems; then the
//! second round follows. So a machine that slows down for a minute slows all systems, and a ratio compares
//! trials close in time.

use std::time::Duration;

use crate::system::System;
use crate::workload::Workload;
use crate::workload::phase::Times;

/// Single trial of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub system: System,
    pub workload: Workload,
    pub size: u64,
    /// Round, within which trials are compared.
    pub round: u32,
    pub times: Times,
}

/// Workload with its sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub workload: Workload,
    pub sizes: Vec<u64>,
    /// Number of trials of each system at each size.
    pub rounds: u32,
    /// Durations of one trial.
    pub times: Times,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Systems in the order of their turns.
    pub systems: Vec<System>,
    /// Parts in the order of their execution.
    pub parts: Vec<Part>,
}

fn times(warm_up_ms: u64, measured_ms: u64) -> Times {
    Times { warm_up: Duration::from_millis(warm_up_ms), measured: Duration::from_millis(measured_ms) }
}

fn part(workload: Workload, sizes: &[u64], rounds: u32, times: Times) -> Part {
    Part { workload, sizes: sizes.to_vec(), rounds, times }
}

impl Plan {
    /// Returns the plan of the whole comparison, which takes less than a quarter of an hour.
    pub fn whole() -> Plan {
        let usual = times(400, 1200);
        let parts = vec![
            part(Workload::Uncontended, &[1, 16, 64, 256, 1024], 3, usual),
            part(Workload::Shared, &[1, 16, 256, 1024, 4096], 2, usual),
            part(Workload::Posted, &[1, 256], 2, usual),
            part(Workload::Light, &[100], 2, times(400, 2000)),
            part(Workload::Contended, &[10, 100], 3, usual),
            // The trial ends after each client has held the lock several times, which takes several seconds.
            part(Workload::Contended, &[1000], 3, times(400, 3000)),
            part(Workload::ReadMostly, &[64], 3, usual),
            part(Workload::Herd, &[1000], 2, usual),
            part(Workload::Crash, &[4000], 2, usual),
            part(Workload::LeaderKill, &[1], 3, usual),
            part(Workload::Idle, &[10_000], 1, times(4000, 10_000)),
            part(Workload::Snapshot, &[1_000_000], 1, times(500, 10_000)),
        ];
        let systems = System::ALL.into_iter().filter(|system| !system.is_extra()).collect();
        Plan { systems, parts }
    }

    /// Returns the two workloads that most changes are made for, in two minutes.
    pub fn quick() -> Plan {
        let short = times(200, 800);
        let parts = vec![
            part(Workload::Uncontended, &[1, 64, 256], 2, short),
            part(Workload::Contended, &[10, 100], 2, short),
        ];
        let systems = System::ALL
            .into_iter()
            .filter(|system| *system != System::RowlockPlain && !system.is_extra())
            .collect();
        Plan { systems, parts }
    }

    /// Returns the plan that measures Rowlock's operations while something grows. Each trial starts servers
    /// and grows their state. A session takes one of `open_files`.
    pub fn scale(open_files: u64) -> Plan {
        let measured = times(500, 2500);
        // Reserves files for the clients that run cycles, and for the program's other files.
        let sessions = open_files.saturating_sub(1000).min(20_000);
        let parts = vec![
            part(Workload::ScaleSessions, &[100, 1000, 5000, 10_000, sessions], 2, measured),
            part(Workload::ScaleZnodes, &[1000, 10_000, 100_000, 1_000_000], 2, measured),
            part(Workload::ScaleQueue, &[1, 10, 100, 1000, 10_000], 2, measured),
            part(Workload::ScaleWatches, &[1, 100, 1000, 10_000, 100_000], 2, measured),
            part(Workload::ScaleLocks, &[1000, 10_000, 100_000], 2, measured),
            part(Workload::ScalePaths, &[20, 50, 100, 200, 400], 2, measured),
            part(Workload::ScaleDepth, &[2, 4, 8, 16, 32], 2, measured),
            part(Workload::ScalePlaces, &[1, 10, 100, 700], 2, measured),
        ];
        Plan { systems: vec![System::Rowlock], parts }
    }

    /// Returns the plan with a return of all clients at once, and with a load beyond the capacity.
    pub fn pressure() -> Plan {
        let parts = vec![
            part(Workload::Storm, &[1000, 14_000, 20_000], 2, times(0, 0)),
            part(Workload::Overload, &[50, 90, 100, 150, 200, 300], 2, times(1000, 4000)),
        ];
        Plan { systems: vec![System::Rowlock], parts }
    }

    /// Returns the plan with fewer or more trials. `None` and empty fields change nothing; other values apply
    /// to every part.
    #[must_use]
    pub fn changed(
        mut self,
        systems: &[System],
        workloads: &[Workload],
        rounds: Option<u32>,
        measured: Option<Duration>,
    ) -> Plan {
        if !systems.is_empty() {
            self.systems = systems.to_vec();
        }
        if !workloads.is_empty() {
            self.parts.retain(|part| workloads.contains(&part.workload));
        }
        for part in &mut self.parts {
            part.rounds = rounds.unwrap_or(part.rounds);
            part.times.measured = measured.unwrap_or(part.times.measured);
        }
        self
    }

    /// Returns the trials in their order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for parts in self.parts.chunk_by(|one, next| one.workload == next.workload) {
            let rounds = parts.iter().map(|part| part.rounds).max().unwrap_or(0);
            for round in 0..rounds {
                for part in parts.iter().filter(|part| round < part.rounds) {
                    steps.extend(part.sizes.iter().flat_map(|size| self.turns(part, *size, round)));
                }
            }
        }
        steps
    }

    /// One trial of each system.
    fn turns(&self, part: &Part, size: u64, round: u32) -> impl Iterator<Item = Step> {
        let Part { workload, times, .. } = *part;
        let systems = self.systems.iter().filter(move |system| workload.applies(**system));
        systems.map(move |system| Step { system: *system, workload, size, round, times })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_take_turns_and_so_do_sizes() {
        let plan = Plan::quick().changed(
            &[System::Rowlock, System::Etcd],
            &[Workload::Uncontended],
            Some(2),
            Some(Duration::from_secs(7)),
        );
        let order: Vec<(u64, u32, System)> =
            plan.steps().iter().map(|step| (step.size, step.round, step.system)).collect();
        let (a, b) = (System::Rowlock, System::Etcd);
        assert_eq!(order[..4], [(1, 0, a), (1, 0, b), (64, 0, a), (64, 0, b)]);
        assert_eq!(order[6..8], [(1, 1, a), (1, 1, b)]);
        assert_eq!(order.len(), 3 * 2 * 2);
        assert!(plan.steps().iter().all(|step| step.times.measured == Duration::from_secs(7)));
    }

    #[test]
    fn plans_leave_time_for_starting_servers() {
        let measured = |plan: &Plan| -> Duration {
            plan.steps().iter().map(|step| step.times.warm_up + step.times.measured).sum()
        };
        assert!(measured(&Plan::whole()) < Duration::from_secs(12 * 60), "{:?}", measured(&Plan::whole()));
        assert!(measured(&Plan::quick()) < Duration::from_secs(75), "{:?}", measured(&Plan::quick()));
    }
}
