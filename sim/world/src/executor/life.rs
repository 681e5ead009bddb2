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
    /// Whether a host's process is there (it may stand still).
    pub fn is_up(&self, host: HostId) -> bool {
        self.core.state.lock().hosts[host.0].life != Life::Down
    }

    /// Whether a host's process stands still.
    pub fn is_paused(&self, host: HostId) -> bool {
        self.core.state.lock().hosts[host.0].life == Life::Paused
    }

    /// How the last life of a host ended, in the words of [`What::Down`].
    pub fn last_end(&self, host: HostId) -> &'static str {
        self.core.state.lock().hosts[host.0].end
    }

    pub fn name_of(&self, host: HostId) -> String {
        self.core.state.lock().hosts[host.0].name.clone()
    }

    /// Begins a new life of the host: the machine gets power if it had none, and a process may run.
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
        core.trace().note(core.now(), || What::Up { host });
    }

    /// The process dies (kill -9): the machine, its page cache and its network go on.
    ///
    /// # Errors
    /// A destructor of what ran there panicked.
    pub fn kill(&self, host: HostId) -> Result<(), Halt> {
        self.end(host, "killed")
    }

    /// The process is over: whatever is left of it ends.
    ///
    /// # Errors
    /// As [`Simulation::kill`].
    pub fn stop(&self, host: HostId) -> Result<(), Halt> {
        self.end(host, "stopped")
    }

    /// A runtime of the process ends, in order, while the process goes on: its tasks are dropped, which are
    /// those of this name. Nothing happens on a host that stands still.
    ///
    /// # Errors
    /// As [`Simulation::kill`].
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

    /// The program returns from `main`: what it has is dropped in order while the network still takes what it
    /// says. Then the process is gone. Nothing happens on a host that stands still.
    ///
    /// # Errors
    /// As [`Simulation::kill`].
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

    /// The machine loses power: unflushed data may be gone, and no peer is told.
    ///
    /// # Errors
    /// As [`Simulation::kill`].
    pub fn power_off(&self, host: HostId) -> Result<(), Halt> {
        let was_up = self.core.bring_down(host, "power lost");
        self.core.disk_of(host).power_loss();
        self.core.network().power_lost(host);
        if was_up { self.drop_all_of(host) } else { Ok(()) }
    }

    /// The power of the machine goes in the middle of its `nth` disk operation from now, of those that
    /// `counts` accepts.
    pub fn cut_power_at_operation(&self, host: HostId, nth: u64, counts: fn(Op) -> bool) {
        self.core.disk_of(host).cut_power_at(nth, counts, self.doom(host));
    }

    /// The machine loses power right after the `nth` message that it sends from now on.
    pub fn cut_power_at_message(&self, host: HostId, nth: u64) {
        self.core.network().at_message(host, nth, self.doom(host));
    }

    /// Lets the power of the machine go before any other task runs.
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

    /// The process stands still (SIGSTOP, a paused VM, a long collection) until [`Simulation::resume`].
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
        core.trace().note(core.now(), || What::Paused { host });
    }

    /// It goes on: all its timers that have passed in the meantime ring, together with what has come in.
    /// Either may run first.
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
        core.trace().note(core.now(), || What::Resumed { host });
    }

    /// From now on what is left to chance is drawn from this seed: order and time of tasks and messages, and
    /// what hosts draw themselves.
    pub fn choose_anew(&self, seed: u64) {
        let mut seeds = Rng::new(seed);
        self.core.network().choose_anew(Rng::new(seeds.u64()));
        let mut state = self.core.state.lock();
        [state.choice, state.pace] = std::array::from_fn(|_| Rng::new(seeds.u64()));
        state.hosts.iter_mut().for_each(|host| host.rng = Rng::new(seeds.u64()));
    }

    /// The host's monotonic clock runs at this many parts per million of true time from now on.
    pub fn set_clock_rate(&self, host: HostId, parts_per_million: u64) {
        let now = self.core.now();
        self.core.state.lock().hosts[host.0].clock.set_rate(now, parts_per_million);
        self.core.mark(7, host);
    }

    /// Returns the host's wall clock, milliseconds since 1970.
    pub fn wall_ms(&self, host: HostId) -> i64 {
        self.core.state.lock().hosts[host.0].clock.wall_ms(self.now())
    }

    /// The host's wall clock jumps.
    pub fn jump_wall_clock(&self, host: HostId, by_ms: i64) {
        self.core.state.lock().hosts[host.0].clock.jump(by_ms);
        self.core.mark(8, host);
    }

    /// Ends the world: drops everything that runs in it. A world that is not ended is never freed, since its
    /// tasks know it.
    ///
    /// # Errors
    /// As [`Simulation::kill`].
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

    /// Whether it was up.
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
        self.trace().note(self.now(), || What::Down { host, how });
        true
    }
}
