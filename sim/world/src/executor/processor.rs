//! A host's processor: one, on which its tasks take turns, each for as long as its accounted work takes
//! (`rowlock_env::busy`).
//!
//! While a turn lasts, no other task of the host is polled and its timers are late; time passes for the other
//! hosts, and what they send arrives. A turn is polled at once, at the moment at which it begins: `env`'s
//! clocks show that moment throughout the turn, so that facts keep the order of true time. What the turn
//! sends leaves when the work before it is done.

use std::collections::VecDeque;
use std::time::Duration;

use rowlock_env::world::TaskId;

use crate::rng::Rng;
use crate::time::Nanos;

/// A processor may be ahead of true time by this much before its host counts as busy: small turns then share
/// an instant, which keeps runs fast.
const AHEAD: Duration = Duration::from_micros(50);
/// The speed for which the costs of `rowlock_env::busy` are, in percent.
pub const USUAL_SPEED: u32 = 100;
/// Speeds of hosts with their weights: from a tenth of the usual one to four times as much.
const SPEEDS: [(usize, (u32, u32)); 4] = [(70, (80, 125)), (12, (35, 80)), (13, (125, 400)), (5, (10, 35))];
/// Of tasks that have waited for a busy processor, one of this many longest waiting is next.
/// Schedulers are fair, but not exactly.
const OLDEST: usize = 2;

pub(super) struct Processor {
    speed: u32,
    /// Its turns so far are over then.
    free_at: Nanos,
    /// Time that its turns have taken.
    worked: Duration,
    /// It is so far ahead that it has to wait until then.
    is_busy: bool,
    /// Tasks wait that became ready while it was busy.
    is_contended: bool,
    /// Tasks that are ready, in the order in which they became so.
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

    /// How many tasks could have the next turn.
    pub(super) fn ready(&self) -> usize {
        if self.is_busy { 0 } else { self.ready.len() }
    }

    /// Takes out a ready task, chosen by `at`.
    pub(super) fn take(&mut self, at: usize) -> Option<TaskId> {
        let at = if self.is_contended { at % OLDEST.min(self.ready.len()) } else { at };
        let task = self.ready.remove(at);
        self.is_contended &= !self.ready.is_empty();
        task
    }

    /// A turn that began `now` has taken this much accounted work.
    pub(super) fn worked(&mut self, now: Nanos, work: Duration) {
        self.free_at = self.done_at(now, work);
        self.worked += work * USUAL_SPEED / self.speed;
        self.is_busy = self.free_at > now + AHEAD;
    }

    /// When a turn that began `now` will have done this much work.
    pub(super) fn done_at(&self, now: Nanos, work: Duration) -> Nanos {
        self.free_at.max(now) + work * USUAL_SPEED / self.speed
    }

    /// When its host can do something again, if it cannot now.
    pub(super) fn busy_until(&self) -> Option<Nanos> {
        self.is_busy.then_some(self.free_at)
    }

    /// It is free if its turns are over by `now`.
    pub(super) fn look(&mut self, now: Nanos) {
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
