//! Lets clients' tasks run in short turns, so that whatever clients do, the node's own tasks (consensus,
//! heartbeats, session timers) get the thread after about a millisecond.
//!
//! The runtime polls ready tasks in the order in which they became ready. A *lap* is a walk through all that
//! are ready. Each [`Class`] of clients' tasks has [`TURN_MAX`] of accounted work ([`busy`]) per lap; a task
//! that comes when its class has used that up stands in line, and is not polled before its turn in a later
//! lap. A task is heavy after a turn of more than [`LIGHT_MAX`], until one of its turns takes
//! less: sixty connections that flood a node share one long turn per lap, and a quiet one passes them.
//!
//! Invariant: a task in line is granted a turn, in the order of its line, or leaves the line when it is
//! dropped. While a line is not empty, there is a task that begins laps.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::busy::{self, TURN_MAX};
use crate::{task, world};

/// Accounted work of a turn beyond which its task is heavy.
pub const LIGHT_MAX: Duration = Duration::from_micros(50);

/// Which tasks share the work of a lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Connections of operators: probes, metrics.
    Operator,
    Client,
    /// Tasks of either class with long turns.
    Heavy,
}

const CLASSES: [Class; 3] = [Class::Operator, Class::Client, Class::Heavy];

impl Class {
    /// Accounted work after which a turn ends while others stand in line.
    fn turn_max(self) -> Duration {
        match self {
            Class::Operator | Class::Client => LIGHT_MAX,
            Class::Heavy => TURN_MAX,
        }
    }
}

/// See the module. One per node; clones are the same.
#[derive(Clone, Default)]
pub struct Turnstile {
    shared: Arc<TurnstileState>,
}

#[derive(Default)]
struct TurnstileState {
    gates: [Gate; CLASSES.len()],
    /// Tasks stand in line.
    is_contended: AtomicBool,
    lines: Mutex<Lines>,
}

/// The part of a class that is read without a lock.
struct Gate {
    /// Nanoseconds of the lap that are left to tasks that do not stand in line. Not positive while others do.
    left: AtomicI64,
    /// Tickets below have their turn.
    called: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { left: AtomicI64::new(nanos(TURN_MAX)), called: AtomicU64::new(0) }
    }
}

#[derive(Default)]
struct Lines {
    lines: [Line; CLASSES.len()],
    /// A task begins laps.
    has_laps: bool,
}

#[derive(Default)]
struct Line {
    /// From the first ticket that is not called on. `None`: the task is gone.
    waiting: VecDeque<Option<Waker>>,
    /// Nanoseconds of the lap that are left to those in line.
    left: i64,
    /// Called, and the turn has not ended.
    under_way: usize,
}

/// The place of one task.
struct Pass {
    stile: Turnstile,
    class: Class,
    is_heavy: bool,
    /// While it stands in line.
    ticket: Option<u64>,
}

pin_project_lite::pin_project! {
    /// A task that passes the turnstile before each of its turns.
    struct Turns<F> {
        #[pin]
        future: F,
        // By itself, so that tasks stay small: most wait, and there are many.
        pass: Box<Pass>,
    }
}

impl<F: Future> Future for Turns<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Ends when it is dropped.
        let Some(_turn) = this.pass.begin(cx) else { return Poll::Pending };
        this.future.poll(cx)
    }
}

/// Bytes that a task is larger by if it passes a turnstile.
pub const PASS_BYTES: usize = size_of::<Box<Pass>>();

/// A turn that has begun. Dropping it ends it.
struct Turn<'a> {
    pass: &'a mut Pass,
    class: Class,
    was_called: bool,
    before: Duration,
}

impl Turnstile {
    /// `future` with turns of its own: to be spawned as a task.
    pub fn turns<F: Future>(&self, class: Class, future: F) -> impl Future<Output = F::Output> + use<F> {
        Turns { future, pass: Box::new(Pass { stile: self.clone(), class, is_heavy: false, ticket: None }) }
    }

    /// How many tasks stand in line.
    pub fn waiting(&self) -> usize {
        self.shared.lines.lock().lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// The last place of the line.
    fn join(&self, class: Class, waker: Waker) -> u64 {
        let TurnstileState { gates, lines, is_contended } = &*self.shared;
        let mut lines = lines.lock();
        is_contended.store(true, Relaxed);
        let (gate, line) = (&gates[class as usize], &mut lines.lines[class as usize]);
        let ticket = gate.called.load(Relaxed) + line.waiting.len() as u64;
        line.waiting.push_back(Some(waker));
        if !std::mem::replace(&mut lines.has_laps, true) {
            let stile = self.clone();
            // It ends by itself when the lines are empty.
            task::spawn("laps", async move {
                loop {
                    task::give_way().await;
                    if !stile.begin_lap() {
                        return;
                    }
                }
            });
        }
        ticket
    }

    /// Gives each class its work of a lap. False: no task stands in line, and no more laps are needed.
    fn begin_lap(&self) -> bool {
        let TurnstileState { gates, lines, is_contended } = &*self.shared;
        let mut lines = lines.lock();
        let (places, mut called) = (places(), Vec::new());
        for ((class, gate), line) in CLASSES.iter().zip(gates).zip(&mut lines.lines) {
            line.left = nanos(TURN_MAX) * places as i64;
            while line.may_call(*class) && line.call(gate, &mut called) {}
            if line.waiting.is_empty() {
                gate.left.store(0, Relaxed);
            }
            line.open(gate);
        }
        lines.has_laps = lines.lines.iter().any(|line| !line.waiting.is_empty());
        let has_laps = lines.has_laps;
        is_contended.store(has_laps, Relaxed);
        drop(lines);
        called.into_iter().for_each(Waker::wake);
        has_laps
    }

    /// A called task has had its turn, or is gone.
    fn passed(&self, class: Class, spent: Duration) {
        let TurnstileState { gates, lines, .. } = &*self.shared;
        let mut lines = lines.lock();
        let (gate, line) = (&gates[class as usize], &mut lines.lines[class as usize]);
        line.under_way = line.under_way.checked_sub(1).expect("a turn that ends was under way");
        line.left = line.left.saturating_sub(nanos(spent));
        let mut called = Vec::new();
        while line.may_call(class) && line.call(gate, &mut called) {}
        line.open(gate);
        drop(lines);
        called.into_iter().for_each(Waker::wake);
    }
}

impl Line {
    /// Whether what is left of the lap is enough for one more turn. Short ones are taken together: each costs
    /// a walk through all tasks that are ready.
    fn may_call(&self, class: Class) -> bool {
        self.left > nanos(class.turn_max()) * self.under_way as i64
    }

    /// Calls the first task. False: there is none.
    fn call(&mut self, gate: &Gate, called: &mut Vec<Waker>) -> bool {
        while let Some(first) = self.waiting.pop_front() {
            gate.called.fetch_add(1, Relaxed);
            if let Some(waker) = first {
                self.under_way += 1;
                called.push(waker);
                return true;
            }
        }
        false
    }

    /// Opens the gate: the rest of the lap that waiting tasks leave is for all.
    fn open(&mut self, gate: &Gate) {
        if self.waiting.is_empty() {
            gate.left.fetch_add(std::mem::take(&mut self.left), Relaxed);
        }
    }
}

impl Pass {
    /// `None`: the task stands in line, and is woken for its turn.
    fn begin(&mut self, cx: &mut Context<'_>) -> Option<Turn<'_>> {
        let class = if self.is_heavy { Class::Heavy } else { self.class };
        let gate = &self.stile.shared.gates[class as usize];
        match self.ticket {
            Some(ticket) if ticket < gate.called.load(Relaxed) => {
                self.ticket = None;
                Some(Turn::new(self, class, None))
            }
            Some(ticket) => {
                // Woken for another reason. The turn finds that out.
                let mut lines = self.stile.shared.lines.lock();
                let at = ticket.checked_sub(gate.called.load(Relaxed));
                let Some(at) = at.and_then(|at| usize::try_from(at).ok()) else {
                    cx.waker().wake_by_ref(); // called meanwhile, by another thread
                    return None;
                };
                lines.lines[class as usize].waiting[at] = Some(cx.waker().clone());
                None
            }
            None if gate.left.load(Relaxed) > 0 => {
                let left = gate.left.load(Relaxed);
                Some(Turn::new(self, class, Some(left)))
            }
            None => {
                self.ticket = Some(self.stile.join(class, cx.waker().clone()));
                None
            }
        }
    }
}

impl<'a> Turn<'a> {
    /// `left`: nanoseconds of the lap, for a task that was not called. While no task stands in line, it may
    /// have all of them.
    fn new(pass: &'a mut Pass, class: Class, left: Option<i64>) -> Turn<'a> {
        let before = busy::spent();
        let turn_max = match left.map(u64::try_from) {
            Some(Ok(left)) if !pass.stile.shared.is_contended.load(Relaxed) => {
                Duration::from_nanos(left).clamp(LIGHT_MAX, TURN_MAX)
            }
            _ => class.turn_max(),
        };
        busy::end_turn_at(before + turn_max);
        Turn { pass, class, was_called: left.is_none(), before }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let spent = busy::spent().saturating_sub(self.before);
        let Pass { stile, is_heavy, .. } = &mut *self.pass;
        *is_heavy = spent >= LIGHT_MAX;
        if self.was_called {
            stile.passed(self.class, spent);
        } else {
            stile.shared.gates[self.class as usize].left.fetch_sub(nanos(spent), Relaxed);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let class = if self.is_heavy { Class::Heavy } else { self.class };
        {
            let mut lines = self.stile.shared.lines.lock();
            let called = self.stile.shared.gates[class as usize].called.load(Relaxed);
            if let Some(at) = ticket.checked_sub(called) {
                let at = usize::try_from(at).expect("a place in a line in memory");
                lines.lines[class as usize].waiting[at] = None;
                return;
            }
        }
        self.stile.passed(class, Duration::ZERO);
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Tasks of a class that may have long turns at the same time: one thread is left to the node.
fn places() -> usize {
    if world::is_simulated() {
        return 1;
    }
    let workers = tokio::runtime::Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
    workers.saturating_sub(1).max(1)
}

#[cfg(test)]
mod tests;
