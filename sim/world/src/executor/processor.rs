//! Processor of a host: its tasks take turns, each for the duration of its accounted work
//! (`rowlock_env::busy`).
//!
//! During a turn no other task of the host runs and its timers are late; time passes for the other hosts, and
//! their messages arrive. A turn is polled instantly at its start: `env`'s clocks show that moment throughout
//! the turn, so that facts keep the order of true time. Messages of the turn leave when the work before them
//! is done.

use std::collections::VecDeque;
use std::time::Duration;

use rowlock_env::world::TaskId;

use crate::rng::Rng;
use crate::time::Nanos;

/// Lead over true time up to which a host does not count as busy: small turns then share an instant, which
/// keeps runs fast.
const AHEAD: Duration = Duration::from_micros(50);
/// Speed that matches the costs in `rowlock_env::busy`, in percent.
pub const USUAL_SPEED: u32 = 100;
/// Speeds of hosts with their weights: from a tenth of the usual speed to four times as much.
const SPEEDS: [(usize, (u32, u32)); 4] = [(70, (80, 125)), (12, (35, 80)), (13, (125, 400)), (5, (10, 35))];
/// Number of longest-waiting tasks among which the next turn is drawn after a busy period. Schedulers are
/// fair, but not exactly.
const OLDEST: usize = 2;

pub(super) struct Processor {
    speed: u32,
    /// End of all turns so far.
    free_at: Nanos,
    /// Total duration of all turns.
    worked: Duration,
    /// The processor leads true time by more than [`AHEAD`] and must wait for `free_at`.
    is_busy: bool,
    /// Tasks became ready while the processor was busy.
    is_contended: bool,
    /// Ready tasks, in the order of becoming ready.
    ready: VecDeque<TaskId>,
}

impl Processor {
    pub(super) fn new(speeds: &mut Rng) -> Processor {
        let (least, most) = speeds.pick_weighted(&SPEEDS);
        let speed = least + speeds.below((most - least + 1) as usize) as u32;
        let (free_at, worked, ready) = (Nanos(0), Duration::ZERO, VecDeque::new());
        Processor { speed, free_at, worked, is_busy: false, is_contended: false, ready }
    }

    pub(super) fn speed(&self) -> u32 {
        self.speed
    }

    pub(super) fn total(&self) -> Duration {
        self.worked
    }

    pub(super) fn set_speed(&mut self, percent: u32) {
        self.speed = percent.max(1);
    }

    pub(super) fn is_ready(&mut self, task: TaskId) {
        self.ready.push_back(task);
    }

    /// Returns how many tasks could have the next turn.
    pub(super) fn ready(&self) -> usize {
        if self.is_busy { 0 } else { self.ready.len() }
    }

    /// Removes a ready task, chosen by `at`.
    pub(super) fn take(&mut self, at: usize) -> Option<TaskId> {
        let at = if self.is_contended { at % OLDEST.min(self.ready.len()) } else { at };
        let task = self.ready.remove(at);
        self.is_contended &= !self.ready.is_empty();
        task
    }

    /// Accounts the work of a turn that began at `now`.
    pub(super) fn worked(&mut self, now: Nanos, work: Duration) {
        self.free_at = self.done_at(now, work);
        self.worked += work * USUAL_SPEED / self.speed;
        self.is_busy = self.free_at > now + AHEAD;
    }

    /// Returns when a turn that began at `now` will have done this much work.
    pub(super) fn done_at(&self, now: Nanos, work: Duration) -> Nanos {
        self.free_at.max(now) + work * USUAL_SPEED / self.speed
    }

    /// Returns when a busy host becomes free.
    pub(super) fn busy_until(&self) -> Option<Nanos> {
        self.is_busy.then_some(self.free_at)
    }

    /// Ends the busy period if its turns are over by `now`.
    pub(super) fn refresh(&mut self, now: Nanos) {
        if self.is_busy && self.free_at <= now {
            self.is_busy = false;
            self.is_contended = !self.ready.is_empty();
        }
    }

    pub(super) fn clear(&mut self) {
        self.ready.clear();
        (self.free_at, self.is_busy, self.is_contended) = (Nanos(0), false, false);
    }
}
