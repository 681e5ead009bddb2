//! The effects of a call or an event outside the network: wakers to call, future events.
//!
//! They are collected while the network is locked and carried out afterwards. Invariant: no waker is called
//! or dropped, and no event is handed over, while the network's lock is held, as all of these may call the
//! network again.

use std::task::{Context, Waker};

use super::conn::{ConnId, Side};
use crate::heart::Heart;
use crate::time::Nanos;
use crate::trace::Trace;

/// An event of the network.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// Something gets to the end of a flow; `Side` is the sender's.
    Arrive(ConnId, Side),
    /// The bytes of a side have not been acknowledged since then.
    GiveUp(ConnId, Side, Nanos),
    /// A request to connect leaves.
    Knock(u64),
    Knocked(u64),
    /// The answer arrives: from a listener, or that there is none.
    Answered(u64, Option<u64>),
    /// The time for connecting is over.
    TooLate(u64),
}

pub(super) struct Effects<'a> {
    pub now: Nanos,
    pub leaves: Nanos,
    pub trace: &'a Trace,
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
    deeds: Vec<(Nanos, Deed)>,
}

impl<'a> Effects<'a> {
    pub fn new(heart: &'a dyn Heart) -> Self {
        Effects {
            now: heart.now(),
            leaves: heart.turn_so_far(),
            trace: heart.trace(),
            woken: Vec::new(),
            dropped: Vec::new(),
            deeds: Vec::new(),
        }
    }

    /// Remembers who waits, in place of who waited before.
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

    pub fn at(&mut self, when: Nanos, deed: Deed) {
        self.deeds.push((when, deed));
    }

    /// To be carried out once the lock is free.
    pub fn finish(self) -> (Vec<Waker>, Vec<Waker>, Vec<(Nanos, Deed)>) {
        (self.woken, self.dropped, self.deeds)
    }
}
