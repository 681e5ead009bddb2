//! The loop: runs a runnable task; without one, advances time to the next timer or event.

use std::task::{Context, Poll};

use rowlock_env::busy;
use rowlock_env::world::{self, Boxed};

use super::core::{Core, State};
use super::host::Host;
use super::tasks::Turn;
use super::{Halt, POLLS_MAX, Simulation, panics};
use crate::heart::Heart;
use crate::time::{HostId, Nanos};

impl Simulation {
    /// Advances time until `until`.
    ///
    /// # Errors
    /// The simulated code has a bug. The world cannot continue.
    pub fn run_until(&self, until: Nanos) -> Result<(), Halt> {
        self.run_until_or(until, || false)
    }

    /// Advances time until `until`, or until `stop` returns true; `stop` is called once in every instant,
    /// when no task is runnable.
    ///
    /// # Errors
    /// The same as [`Simulation::run_until`].
    pub fn run_until_or(&self, until: Nanos, mut stop: impl FnMut() -> bool) -> Result<(), Halt> {
        let core = &*self.core;
        let _stay = world::enter(self.core.clone());
        loop {
            self.run_this_instant()?;
            if stop() {
                return Ok(());
            }
            let Some(next) = core.next_moment().filter(|next| *next <= until) else {
                core.set_now(until.max(core.now()));
                return Ok(());
            };
            core.set_now(next);
            panics::guard(|| core.ring()).map_err(|what| Halt::Panic { host: None, what })?;
            self.bury()?;
        }
    }

    /// Runs all runnable tasks at the present instant.
    fn run_this_instant(&self) -> Result<(), Halt> {
        let core = &*self.core;
        let mut polls = 0;
        while let Some(turn) = core.next_turn() {
            polls += 1;
            if polls > POLLS_MAX {
                let name = core.state.lock().tasks.name(turn.task);
                return Err(Halt::Livelock { task: format!("{name} on {}", turn.host) });
            }
            let host = turn.host;
            panics::guard(|| core.poll(turn)).map_err(|what| Halt::Panic { host: Some(host), what })?;
            self.bury()?;
        }
        Ok(())
    }

    /// Drops aborted futures, and ends hosts with a pending power cut.
    pub(super) fn bury(&self) -> Result<(), Halt> {
        loop {
            let (graves, doomed) = {
                let mut state = self.core.state.lock();
                if state.graves.is_empty() && state.doomed.is_empty() {
                    return Ok(());
                }
                (std::mem::take(&mut state.graves), std::mem::take(&mut state.doomed))
            };
            for (host, future) in graves {
                self.core.drop_on(host, future)?;
            }
            for host in doomed {
                self.power_off(host)?;
            }
        }
    }
}

impl Core {
    /// Chooses the next task by the seed, among the runnable tasks on free processors.
    fn next_turn(&self) -> Option<Turn> {
        let mut state = self.state.lock();
        self.collect(&mut state);
        loop {
            let many: usize = state.hosts.iter().map(Host::ready).sum();
            let mut at = match many {
                0 => return None,
                1 => 0,
                many => state.choice.below(many),
            };
            let host = state.hosts.iter_mut().find(|host| {
                let ready = host.ready();
                let is_there = at < ready;
                at -= if is_there { 0 } else { ready };
                is_there
            });
            let Some(task) = host.and_then(|host| host.processor.take(at)) else { continue };
            if let Some(turn) = state.tasks.begin(task) {
                state.polls += 1;
                self.trace().print(&[self.now().0, task.0]);
                return Some(turn);
            }
        }
    }

    fn collect(&self, state: &mut State) {
        for task in self.woken.lock().drain(..) {
            if let Some(host) = state.tasks.host(task) {
                state.hosts[host.0].processor.is_ready(task);
            }
        }
    }

    fn poll(&self, mut turn: Turn) {
        let _place = self.enter_host(Some(turn.host));
        busy::begin_turn();
        let polled = turn.future.as_mut().poll(&mut Context::from_waker(&turn.waker));
        let rest = match polled {
            Poll::Ready(()) => {
                self.state.lock().tasks.end(turn.task);
                Some(turn.future)
            }
            Poll::Pending => self.state.lock().tasks.wait(turn.task, turn.future),
        };
        drop(rest); // as the host, and outside the lock
        let work = busy::finish_turn();
        if !work.is_zero() {
            self.trace().print(&[work.as_nanos() as u64]);
            self.state.lock().hosts[turn.host.0].processor.worked(self.now(), work);
        }
    }

    /// Drops a future of a host, as that host.
    pub(super) fn drop_on(&self, host: HostId, future: Boxed<()>) -> Result<(), Halt> {
        let _place = self.enter_host(Some(host));
        panics::guard(|| drop(future)).map_err(|what| Halt::Panic { host: Some(host), what })
    }

    /// Returns the time of the next timer, turn or event.
    fn next_moment(&self) -> Option<Nanos> {
        let state = self.state.lock();
        let event = state.events.first_key_value().map(|((when, _), _)| *when);
        let next = state.hosts.iter().filter_map(Host::next_moment).chain(event).min()?;
        Some(next.max(self.now())) // timers of a host that was paused may be overdue
    }

    /// Fires due timers and events.
    fn ring(&self) {
        let now = self.now();
        let mut rung = Vec::new();
        for host in &mut self.state.lock().hosts {
            host.due(now, &mut rung);
        }
        for waker in rung {
            waker.wake();
        }
        loop {
            let event = {
                let mut state = self.state.lock();
                match state.events.first_entry() {
                    Some(entry) if entry.key().0 <= now => entry.remove(),
                    _ => return,
                }
            };
            event();
        }
    }
}
