//! Starts, kills and pauses hosts. A death drops exactly the tasks of its host.

use std::task::Waker;

use super::core::Core;
use super::host::Life;
use super::{Halt, Simulation};
use crate::disk::Op;
use crate::heart::Heart;
use crate::rng::Rng;
use crate::time::HostId;
use crate::trace::What;

impl Simulation {
    /// Returns whether a host's process exists (it may be paused).
    pub fn is_up(&self, host: HostId) -> bool {
        self.core.state.lock().hosts[host.0].life != Life::Down
    }

    pub fn is_paused(&self, host: HostId) -> bool {
        self.core.state.lock().hosts[host.0].life == Life::Paused
    }

    /// Returns how the last life of a host ended, as in [`What::Down`].
    pub fn last_end(&self, host: HostId) -> &'static str {
        self.core.state.lock().hosts[host.0].end
    }

    pub fn name_of(&self, host: HostId) -> String {
        self.core.state.lock().hosts[host.0].name.clone()
    }

    /// Begins a new life of the host: powers the machine on if needed, and allows a process.
    pub fn boot(&self, host: HostId) {
        let core = &self.core;
        {
            let mut state = core.state.lock();
            let it = &mut state.hosts[host.0];
            if it.life != Life::Down {
                return;
            }
            it.life = Life::Up;
        }
        core.disk_of(host).boot();
        core.network().boot(host);
        core.mark(4, host);
        core.trace().record(core.now(), || What::Up { host });
    }

    /// Kills the process (kill -9): the machine, its page cache and its network continue.
    ///
    /// # Errors
    /// A destructor of a task panicked.
    pub fn kill(&self, host: HostId) -> Result<(), Halt> {
        self.end(host, "killed")
    }

    /// Ends the process, whatever is left.
    ///
    /// # Errors
    /// The same as [`Simulation::kill`].
    pub fn stop(&self, host: HostId) -> Result<(), Halt> {
        self.end(host, "stopped")
    }

    /// Ends a runtime of the process in order, while the process continues: drops its tasks, which have this
    /// name. Without effect on a paused host.
    ///
    /// # Errors
    /// The same as [`Simulation::kill`].
    pub fn end_runtime(&self, host: HostId, name: &str) -> Result<(), Halt> {
        let core = &self.core;
        if core.state.lock().hosts[host.0].life != Life::Up {
            return Ok(());
        }
        let futures = core.state.lock().tasks.take_named(host, name);
        let _stay = rowlock_env::world::enter(core.clone());
        futures.into_iter().try_for_each(|future| core.drop_on(host, future))?;
        self.bury()
    }

    /// Returns from the program's `main`: drops its values in order while the network still accepts data,
    /// then ends the process. Without effect on a paused host.
    ///
    /// # Errors
    /// The same as [`Simulation::kill`].
    pub fn return_from_main(&self, host: HostId) -> Result<(), Halt> {
        if self.core.state.lock().hosts[host.0].life == Life::Up {
            self.drop_all_of(host)?;
            self.end(host, "returned from main")?;
        }
        Ok(())
    }

    fn end(&self, host: HostId, how: &'static str) -> Result<(), Halt> {
        if !self.core.bring_down(host, how) {
            return Ok(());
        }
        self.core.disk_of(host).process_died();
        self.core.network().process_died(host);
        self.drop_all_of(host)
    }

    /// Cuts the machine's power: unflushed data may be lost, and no peer is notified.
    ///
    /// # Errors
    /// The same as [`Simulation::kill`].
    pub fn power_off(&self, host: HostId) -> Result<(), Halt> {
        let was_up = self.core.bring_down(host, "power lost");
        self.core.disk_of(host).power_loss();
        self.core.network().power_lost(host);
        if was_up { self.drop_all_of(host) } else { Ok(()) }
    }

    /// Cuts the machine's power during its `nth` disk operation from now, among the operations that `counts`
    /// accepts.
    pub fn cut_power_at_operation(&self, host: HostId, nth: u64, counts: fn(Op) -> bool) {
        self.core.disk_of(host).cut_power_at(nth, counts, self.doom(host));
    }

    /// Cuts the machine's power right after its `nth` sent message from now.
    pub fn cut_power_at_message(&self, host: HostId, nth: u64) {
        self.core.network().at_message(host, nth, self.doom(host));
    }

    /// Schedules a power cut before any other task runs.
    fn doom(&self, host: HostId) -> Box<dyn FnOnce() + Send> {
        let core = std::sync::Arc::downgrade(&self.core);
        Box::new(move || {
            if let Some(core) = core.upgrade() {
                core.state.lock().doomed.push(host);
            }
        })
    }

    fn drop_all_of(&self, host: HostId) -> Result<(), Halt> {
        let core = &self.core;
        let (futures, timers) = {
            let mut state = core.state.lock();
            let futures = state.tasks.take_all_of(host);
            let it = &mut state.hosts[host.0];
            it.processor.clear();
            (futures, std::mem::take(&mut it.timers))
        };
        drop(timers);
        let _stay = rowlock_env::world::enter(core.clone());
        futures.into_iter().try_for_each(|future| core.drop_on(host, future))?;
        self.bury()
    }

    /// Pauses the process (SIGSTOP, a paused VM, a long collection) until [`Simulation::resume`].
    pub fn pause(&self, host: HostId) {
        let core = &self.core;
        {
            let mut state = core.state.lock();
            let it = &mut state.hosts[host.0];
            if it.life != Life::Up {
                return;
            }
            it.life = Life::Paused;
        }
        core.network().pause(host);
        core.mark(5, host);
        core.trace().record(core.now(), || What::Paused { host });
    }

    /// Resumes the process: all overdue timers fire together with received data, in any order.
    pub fn resume(&self, host: HostId) {
        let core = &self.core;
        let mut rung = Vec::new();
        {
            let mut state = core.state.lock();
            let it = &mut state.hosts[host.0];
            if it.life != Life::Paused {
                return;
            }
            it.life = Life::Up;
            it.due(core.now(), &mut rung);
        }
        rung.into_iter().for_each(Waker::wake);
        core.network().resume(host);
        core.mark(6, host);
        core.trace().record(core.now(), || What::Resumed { host });
    }

    /// Draws all random decisions from this seed from now on: order and time of tasks and messages, and the
    /// hosts' own randomness.
    pub fn reseed(&self, seed: u64) {
        let mut seeds = Rng::new(seed);
        self.core.network().reseed(Rng::new(seeds.u64()));
        let mut state = self.core.state.lock();
        [state.choice, state.pace] = std::array::from_fn(|_| Rng::new(seeds.u64()));
        state.hosts.iter_mut().for_each(|host| host.rng = Rng::new(seeds.u64()));
    }

    /// Sets the rate of the host's monotonic clock, in parts per million of true time, from now on.
    pub fn set_clock_rate(&self, host: HostId, parts_per_million: u64) {
        let now = self.core.now();
        self.core.state.lock().hosts[host.0].clock.set_rate(now, parts_per_million);
        self.core.mark(7, host);
    }

    /// Returns the host's wall clock, milliseconds since 1970.
    pub fn wall_ms(&self, host: HostId) -> i64 {
        self.core.state.lock().hosts[host.0].clock.wall_ms(self.now())
    }

    pub fn jump_wall_clock(&self, host: HostId, by_ms: i64) {
        self.core.state.lock().hosts[host.0].clock.jump(by_ms);
        self.core.mark(8, host);
    }

    /// Ends the world: drops all tasks. A world without this call is never freed, since its tasks refer to
    /// the world.
    ///
    /// # Errors
    /// The same as [`Simulation::kill`].
    pub fn end_of_world(&self) -> Result<(), Halt> {
        let hosts = self.core.state.lock().hosts.len();
        let ends: Vec<Result<(), Halt>> = (0..hosts).map(|host| self.stop(HostId(host))).collect();
        let _stay = rowlock_env::world::enter(self.core.clone());
        let events = std::mem::take(&mut self.core.state.lock().events);
        drop(events);
        ends.into_iter().collect()
    }
}

impl Core {
    fn mark(&self, what: u64, host: HostId) {
        self.trace().print(&[what, self.now().0, host.0 as u64]);
    }

    /// Returns whether the host was up.
    fn bring_down(&self, host: HostId, how: &'static str) -> bool {
        {
            let mut state = self.state.lock();
            let it = &mut state.hosts[host.0];
            if it.life == Life::Down {
                return false;
            }
            (it.life, it.end) = (Life::Down, how);
        }
        self.mark(3, host);
        self.trace().record(self.now(), || What::Down { host, how });
        true
    }
}
