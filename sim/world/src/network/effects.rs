//! Effects of a call or an event outside the network: wakers to call, future events.
//!
//! The effects are collected under the network's lock and carried out afterwards. Invariant: no waker is
//! called or dropped, and no event is scheduled, under the network's lock, since each of these may call the
//! network again.

use std::task::{Context, Waker};

use super::conn::{ConnId, Side};
use crate::heart::Heart;
use crate::time::Nanos;
use crate::trace::Trace;

/// Event of the network.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetworkEvent {
    /// Arrival at the end of a flow; `Side` is the sender's.
    Arrive(ConnId, Side),
    /// Check whether a side's bytes are still unacknowledged since the given time.
    GiveUp(ConnId, Side, Nanos),
    Request(u64),
    RequestArrived(u64),
    /// Arrival of the answer: from a listener, or that none exists.
    Answered(u64, Option<u64>),
    /// End of the time for connecting.
    TimedOut(u64),
}

pub(super) struct Effects<'a> {
    pub now: Nanos,
    pub leaves: Nanos,
    pub trace: &'a Trace,
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
    events: Vec<(Nanos, NetworkEvent)>,
}

impl<'a> Effects<'a> {
    pub fn new(heart: &'a dyn Heart) -> Self {
        Effects {
            now: heart.now(),
            leaves: heart.turn_so_far(),
            trace: heart.trace(),
            woken: Vec::new(),
            dropped: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Stores the task's waker, replacing the previous one.
    pub fn wait(&mut self, slot: &mut Option<Waker>, cx: &Context<'_>) {
        match slot {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => self.dropped.extend(slot.replace(cx.waker().clone())),
        }
    }

    pub fn wake(&mut self, slot: &mut Option<Waker>) {
        self.woken.extend(slot.take());
    }

    pub fn forget(&mut self, slot: &mut Option<Waker>) {
        self.dropped.extend(slot.take());
    }

    pub fn at(&mut self, when: Nanos, event: NetworkEvent) {
        self.events.push((when, event));
    }

    /// Returns the effects, to be carried out after the lock is released.
    pub fn finish(self) -> (Vec<Waker>, Vec<Waker>, Vec<(Nanos, NetworkEvent)>) {
        (self.woken, self.dropped, self.events)
    }
}
