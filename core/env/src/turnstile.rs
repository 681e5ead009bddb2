//! Lets clients' tasks run in short turns, so that under any load from clients the node's own tasks
//! (consensus, heartbeats, session timers) get the thread after about a millisecond.
//!
//! The runtime polls ready tasks in the order of their wake-ups. A *lap* is a walk through all ready tasks.
//! Each [`Class`] of clients' tasks has [`TURN_MAX`] of accounted work ([`busy`]) per lap; after this work
//! the next task of the class joins a line, and waits there for its turn in a later lap. A task is heavy
//! after a turn of more than [`LIGHT_MAX`], until a shorter turn: sixty flooding connections share a long
//! turn per lap, and a quiet connection passes them.
//!
//! Invariant: a task in line gets a turn, in the order of the line, or leaves the line on its drop. A task
//! begins laps while any line is not empty.

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

/// Accounted work of a turn above which its task is heavy.
pub const LIGHT_MAX: Duration = Duration::from_micros(50);

/// Groups of tasks with shared work per lap.
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
    /// Returns the work after which a turn ends while other tasks are in line.
    fn turn_max(self) -> Duration {
        match self {
            Class::Operator | Class::Client => LIGHT_MAX,
            Class::Heavy => TURN_MAX,
        }
    }
}

/// Turnstile of a node; see the module. Clones share the state.
#[derive(Clone, Default)]
pub struct Turnstile {
    shared: Arc<TurnstileState>,
}

#[derive(Default)]
struct TurnstileState {
    gates: [Gate; CLASSES.len()],
    /// True while tasks are in line.
    is_contended: AtomicBool,
    lines: Mutex<Lines>,
}

/// Lock-free part of a class.
struct Gate {
    /// Nanoseconds of the lap left to tasks outside the line. Not positive while tasks are in line.
    left: AtomicI64,
    /// First uncalled ticket: lower tickets have their turn.
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
    /// True while a task begins laps.
    has_laps: bool,
}

#[derive(Default)]
struct Line {
    /// Wakers from the first uncalled ticket on. `None` marks a dropped task.
    waiting: VecDeque<Option<Waker>>,
    /// Nanoseconds of the lap left to the tasks in line.
    left: i64,
    /// Number of called tasks with unfinished turns.
    under_way: usize,
}

struct Pass {
    turnstile: Turnstile,
    class: Class,
    is_heavy: bool,
    /// Position in line, if any.
    ticket: Option<u64>,
}

pin_project_lite::pin_project! {
    /// A task behind the turnstile: the task passes the turnstile before each of its turns.
    struct Turns<F> {
        #[pin]
        future: F,
        // Boxed to keep tasks small: most tasks wait, and there are many.
        pass: Box<Pass>,
    }
}

impl<F: Future> Future for Turns<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // The turn ends on the drop.
        let Some(_turn) = this.pass.begin(cx) else { return Poll::Pending };
        this.future.poll(cx)
    }
}

/// Additional bytes of a task behind a turnstile.
pub const PASS_BYTES: usize = size_of::<Box<Pass>>();

/// A running turn, ended by its drop.
struct Turn<'a> {
    pass: &'a mut Pass,
    class: Class,
    was_called: bool,
    before: Duration,
}

impl Turnstile {
    /// Wraps `future` for spawning as a task behind the turnstile.
    pub fn turns<F: Future>(&self, class: Class, future: F) -> impl Future<Output = F::Output> + use<F> {
        Turns {
            future,
            pass: Box::new(Pass { turnstile: self.clone(), class, is_heavy: false, ticket: None }),
        }
    }

    /// Returns the number of tasks in line.
    pub fn waiting(&self) -> usize {
        self.shared.lines.lock().lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// Joins the end of the line; returns the ticket.
    fn join(&self, class: Class, waker: Waker) -> u64 {
        let TurnstileState { gates, lines, is_contended } = &*self.shared;
        let mut lines = lines.lock();
        is_contended.store(true, Relaxed);
        let (gate, line) = (&gates[class as usize], &mut lines.lines[class as usize]);
        let ticket = gate.called.load(Relaxed) + line.waiting.len() as u64;
        line.waiting.push_back(Some(waker));
        if !std::mem::replace(&mut lines.has_laps, true) {
            let turnstile = self.clone();
            // The task ends once all lines are empty.
            task::spawn("laps", async move {
                loop {
                    task::yield_now().await;
                    if !turnstile.begin_lap() {
                        return;
                    }
                }
            });
        }
        ticket
    }

    /// Gives each class its work for a lap. Returns false if no task is in line: no more laps are needed.
    fn begin_lap(&self) -> bool {
        let TurnstileState { gates, lines, is_contended } = &*self.shared;
        let mut lines = lines.lock();
        let (long_turns_max, mut called) = (long_turns_max(), Vec::new());
        for ((class, gate), line) in CLASSES.iter().zip(gates).zip(&mut lines.lines) {
            line.left = nanos(TURN_MAX) * long_turns_max as i64;
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

    /// Records the end or the drop of a called task's turn.
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
    /// Returns true if the rest of the lap suffices for another turn. Short turns are called together: each
    /// call costs a walk through all ready tasks.
    fn may_call(&self, class: Class) -> bool {
        self.left > nanos(class.turn_max()) * self.under_way as i64
    }

    /// Calls the first task. Returns false for an empty line.
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

    /// Opens the gate: the work left over by the line is free for all tasks.
    fn open(&mut self, gate: &Gate) {
        if self.waiting.is_empty() {
            gate.left.fetch_add(std::mem::take(&mut self.left), Relaxed);
        }
    }
}

impl Pass {
    /// Begins a turn. Returns `None` if the task is in line, to be woken for its turn.
    fn begin(&mut self, cx: &mut Context<'_>) -> Option<Turn<'_>> {
        let class = if self.is_heavy { Class::Heavy } else { self.class };
        let gate = &self.turnstile.shared.gates[class as usize];
        match self.ticket {
            Some(ticket) if ticket < gate.called.load(Relaxed) => {
                self.ticket = None;
                Some(Turn::new(self, class, None))
            }
            Some(ticket) => {
                // The wake-up has another cause. The task finds the cause in its turn.
                let mut lines = self.turnstile.shared.lines.lock();
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
                self.ticket = Some(self.turnstile.join(class, cx.waker().clone()));
                None
            }
        }
    }
}

impl<'a> Turn<'a> {
    /// Begins a turn. `left` has the lap's nanoseconds left for an uncalled task. With an empty line the task
    /// may use all of `left`.
    fn new(pass: &'a mut Pass, class: Class, left: Option<i64>) -> Turn<'a> {
        let before = busy::spent();
        let turn_max = match left.map(u64::try_from) {
            Some(Ok(left)) if !pass.turnstile.shared.is_contended.load(Relaxed) => {
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
        let Pass { turnstile, is_heavy, .. } = &mut *self.pass;
        *is_heavy = spent >= LIGHT_MAX;
        if self.was_called {
            turnstile.passed(self.class, spent);
        } else {
            turnstile.shared.gates[self.class as usize].left.fetch_sub(nanos(spent), Relaxed);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let class = if self.is_heavy { Class::Heavy } else { self.class };
        {
            let mut lines = self.turnstile.shared.lines.lock();
            let called = self.turnstile.shared.gates[class as usize].called.load(Relaxed);
            if let Some(at) = ticket.checked_sub(called) {
                let at = usize::try_from(at).expect("a place in a line in memory");
                lines.lines[class as usize].waiting[at] = None;
                return;
            }
        }
        self.turnstile.passed(class, Duration::ZERO);
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the number of simultaneous long turns per class: a thread is reserved for the node.
fn long_turns_max() -> usize {
    if world::is_simulated() {
        return 1;
    }
    let workers = tokio::runtime::Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
    workers.saturating_sub(1).max(1)
}

#[cfg(test)]
mod tests;
