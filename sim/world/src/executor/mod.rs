//! The executor: tasks of all hosts on one thread, in virtual time. A seeded choice picks the next runnable
//! task; when none is runnable, time moves on to the next timer or event.
//!
//! - `core`: the shared core, and the `World` that env asks;
//! - `tasks`: the tasks and their wakers;
//! - `host`: the data about each host; `processor`: its turns;
//! - `life`: hosts start, die, pause;
//! - `run`: the loop.
//!
//! Invariant: no future, waker or callback of a host is run, dropped or woken under a lock of the executor.

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

/// Why a world stands still: a bug in what runs in it, whatever the faults were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    Panic {
        host: Option<HostId>,
        /// The message, and where.
        what: String,
    },
    /// This many polls in one instant: a task spins.
    Livelock {
        /// The host and the name of the task that was to run next.
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

/// More polls than this in one instant of true time are a violation.
pub const POLLS_MAX: u64 = 1_000_000;

/// A world and what runs in it. Clones are handles of the same world.
#[derive(Clone)]
pub struct Simulation {
    core: Arc<Core>,
}

impl Simulation {
    /// An empty world of this seed. `keep_record`: whether its [`Trace`] is to be told to people.
    pub fn new(seed: u64, keep_record: bool) -> Self {
        panics::catch();
        Simulation { core: Core::new(seed, keep_record) }
    }

    /// A machine; it has power and no process.
    pub fn add_host(&self, name: &str, kind: &'static str, ip: Ipv4Addr) -> HostId {
        self.core.add_host(name, kind, ip)
    }

    /// How fast the host's processor is, in percent of [`USUAL_SPEED`]'s. The seed draws it.
    pub fn speed(&self, host: HostId) -> u32 {
        self.core.state.lock().hosts[host.0].processor.speed()
    }

    /// From its next turn on the host's processor is this fast.
    pub fn set_speed(&self, host: HostId, percent: u32) {
        self.core.state.lock().hosts[host.0].processor.set_speed(percent);
    }

    pub fn now(&self) -> Nanos {
        self.core.now()
    }

    /// Runs code as that host: env's functions mean it.
    pub fn on<T>(&self, host: HostId, code: impl FnOnce() -> T) -> T {
        let _stay = world::enter(self.core.clone());
        let _place = self.core.enter_host(Some(host));
        code()
    }

    /// Starts a task on a host. Nothing happens if its process is not there.
    pub fn spawn<F>(&self, host: HostId, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.on(host, || drop(rowlock_env::task::spawn(name, future)));
    }

    /// Lets `event` happen at a time. It belongs to no host.
    pub fn at(&self, when: Nanos, event: Event) {
        self.core.at(when, event);
    }

    /// The connections, and what can happen to them.
    pub fn network(&self) -> &Network {
        self.core.network()
    }

    /// A host's disk, and what can happen to it.
    pub fn disk(&self, host: HostId) -> Arc<HostDisk> {
        self.core.disk_of(host)
    }

    pub fn trace(&self) -> &Trace {
        self.core.trace()
    }

    pub fn polls(&self) -> u64 {
        self.core.polls()
    }

    /// Tasks of a host that have not ended, by name.
    pub fn tasks_of(&self, host: HostId) -> Vec<&'static str> {
        self.core.tasks_of(host)
    }

    /// Returns a host's monotonic clock in nanoseconds.
    pub fn local(&self, host: HostId) -> u64 {
        self.core.local(host)
    }
}
