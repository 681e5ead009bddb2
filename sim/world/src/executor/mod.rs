//! Executor: tasks of all hosts on one thread, in virtual time. A seeded choice picks the next runnable task;
//! when none is runnable, time advances to the next timer or event.
//!
//! - `core`: the shared core, and the `World` behind env;
//! - `tasks`: the tasks and their wakers;
//! - `host`: the data about each host; `processor`: its turns;
//! - `life`: start, death and pause of hosts;
//! - `run`: the loop.
//!
//! Invariant: no future, waker or callback of a host runs or is dropped under a lock of the executor.

mod core;
mod host;
mod life;
mod panics;
mod processor;
mod run;
mod tasks;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_processors;

use std::fmt;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;

use rowlock_env::world;

use self::core::Core;
pub use self::processor::USUAL_SPEED;
use crate::disk::HostDisk;
use crate::heart::{Event, Heart};
use crate::network::Network;
use crate::time::{HostId, Nanos};
use crate::trace::Trace;

/// Reason why a world stopped: a bug in the simulated code, independent of the faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    Panic {
        host: Option<HostId>,
        /// Message and location of the panic.
        what: String,
    },
    /// More than [`POLLS_MAX`] polls in one instant: a task spins.
    Livelock {
        /// Host and name of the next task.
        task: String,
    },
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Halt::Panic { host: Some(host), what } => write!(f, "panic on {host}: {what}"),
            Halt::Panic { host: None, what } => write!(f, "panic: {what}"),
            Halt::Livelock { task } => {
                write!(f, "{POLLS_MAX} polls in one instant; {task} was to run next")
            }
        }
    }
}

impl std::error::Error for Halt {}

/// Most polls in one instant of true time.
pub const POLLS_MAX: u64 = 1_000_000;

/// World with its hosts and tasks. Clones are handles of the same world.
#[derive(Clone)]
pub struct Simulation {
    core: Arc<Core>,
}

impl Simulation {
    /// Creates an empty world of this seed. `keep_record`: the [`Trace`] keeps a readable record.
    pub fn new(seed: u64, keep_record: bool) -> Self {
        panics::catch();
        Simulation { core: Core::new(seed, keep_record) }
    }

    /// Adds a machine with power and without a process.
    pub fn add_host(&self, name: &str, kind: &'static str, ip: Ipv4Addr) -> HostId {
        self.core.add_host(name, kind, ip)
    }

    /// Returns the speed of the host's processor, in percent of [`USUAL_SPEED`]'s. Drawn from the seed.
    pub fn speed(&self, host: HostId) -> u32 {
        self.core.state.lock().hosts[host.0].processor.speed()
    }

    /// Sets the speed of the host's processor from its next turn on.
    pub fn set_speed(&self, host: HostId, percent: u32) {
        self.core.state.lock().hosts[host.0].processor.set_speed(percent);
    }

    pub fn now(&self) -> Nanos {
        self.core.now()
    }

    /// Runs code as that host, for all functions of env.
    pub fn on<T>(&self, host: HostId, code: impl FnOnce() -> T) -> T {
        let _stay = world::enter(self.core.clone());
        let _place = self.core.enter_host(Some(host));
        code()
    }

    /// Starts a task on a host. Without effect if the host has no process.
    pub fn spawn<F>(&self, host: HostId, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.on(host, || drop(rowlock_env::task::spawn(name, future)));
    }

    /// Schedules `event` at a time, independent of any host.
    pub fn at(&self, when: Nanos, event: Event) {
        self.core.at(when, event);
    }

    /// Returns the network with its faults.
    pub fn network(&self) -> &Network {
        self.core.network()
    }

    /// Returns a host's disk with its faults.
    pub fn disk(&self, host: HostId) -> Arc<HostDisk> {
        self.core.disk_of(host)
    }

    pub fn trace(&self) -> &Trace {
        self.core.trace()
    }

    pub fn polls(&self) -> u64 {
        self.core.polls()
    }

    /// Returns the names of a host's unfinished tasks.
    pub fn tasks_of(&self, host: HostId) -> Vec<&'static str> {
        self.core.tasks_of(host)
    }

    /// Returns a host's monotonic clock in nanoseconds.
    pub fn local(&self, host: HostId) -> u64 {
        self.core.local(host)
    }
}
