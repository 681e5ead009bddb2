//! Counters, latches and barriers, for callers that block.

use std::time::Duration;

use super::caller::Caller;
use crate::error::Error;

/// A number that all clients share: [`crate::AtomicCounter`].
#[derive(Clone, Debug)]
pub struct Counter {
    caller: Caller,
    counter: crate::AtomicCounter,
}

impl Counter {
    pub(super) fn new(caller: &Caller, counter: crate::AtomicCounter) -> Self {
        Counter { caller: caller.clone(), counter }
    }

    /// See [`crate::AtomicCounter::get`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn get(&self) -> Result<i64, Error> {
        self.caller.ask(self.counter.get())
    }

    /// See [`crate::AtomicCounter::add`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been added.
    pub fn add(&self, delta: i64) -> Result<i64, Error> {
        self.caller.ask(self.counter.add(delta))
    }

    /// See [`crate::AtomicCounter::set`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been set.
    pub fn set(&self, value: i64) -> Result<(), Error> {
        self.caller.ask(self.counter.set(value))
    }

    /// See [`crate::AtomicCounter::compare_and_set`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been set.
    pub fn compare_and_set(&self, expected: i64, new: i64) -> Result<bool, Error> {
        self.caller.ask(self.counter.compare_and_set(expected, new))
    }

    /// See [`crate::AtomicCounter::remove`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been removed.
    pub fn remove(&self) -> Result<(), Error> {
        self.caller.ask(self.counter.remove())
    }
}

/// Opens once so many have counted down: [`crate::CountDownLatch`].
#[derive(Clone, Debug)]
pub struct Latch {
    caller: Caller,
    latch: crate::CountDownLatch,
}

impl Latch {
    pub(super) fn new(caller: &Caller, latch: crate::CountDownLatch) -> Self {
        Latch { caller: caller.clone(), latch }
    }

    /// See [`crate::CountDownLatch::count`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn count(&self) -> Result<u32, Error> {
        self.caller.ask(self.latch.count())
    }

    /// See [`crate::CountDownLatch::count_down`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been counted.
    pub fn count_down(&self) -> Result<u32, Error> {
        self.caller.ask(self.latch.count_down())
    }

    /// Waits until the latch is open.
    ///
    /// # Errors
    /// As [`crate::CountDownLatch::wait`].
    pub fn wait(&self) -> Result<(), Error> {
        self.caller.wait(self.latch.wait())
    }

    /// [`Latch::wait`] for at most `patience` altogether; `false`: it was not open by then.
    ///
    /// # Errors
    /// As [`crate::CountDownLatch::wait`].
    pub fn wait_timeout(&self, patience: Duration) -> Result<bool, Error> {
        self.caller.wait(self.latch.wait_timeout(patience))
    }

    /// See [`crate::CountDownLatch::remove`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may be half removed.
    pub fn remove(&self) -> Result<(), Error> {
        self.caller.ask(self.latch.remove())
    }
}

/// Holds everybody back while it is raised: [`crate::Barrier`].
#[derive(Clone, Debug)]
pub struct Barrier {
    caller: Caller,
    barrier: crate::Barrier,
}

impl Barrier {
    pub(super) fn new(caller: &Caller, barrier: crate::Barrier) -> Self {
        Barrier { caller: caller.clone(), barrier }
    }

    /// See [`crate::Barrier::raise`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been raised.
    pub fn raise(&self) -> Result<(), Error> {
        self.caller.ask(self.barrier.raise())
    }

    /// See [`crate::Barrier::remove`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been removed.
    pub fn remove(&self) -> Result<(), Error> {
        self.caller.ask(self.barrier.remove())
    }

    /// See [`crate::Barrier::is_raised`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn is_raised(&self) -> Result<bool, Error> {
        self.caller.ask(self.barrier.is_raised())
    }

    /// Waits until it is not raised.
    ///
    /// # Errors
    /// As [`crate::Barrier::wait`].
    pub fn wait(&self) -> Result<(), Error> {
        self.caller.wait(self.barrier.wait())
    }

    /// [`Barrier::wait`] for at most `patience` altogether; `false`: it was still raised.
    ///
    /// # Errors
    /// As [`crate::Barrier::wait`].
    pub fn wait_timeout(&self, patience: Duration) -> Result<bool, Error> {
        self.caller.wait(self.barrier.wait_timeout(patience))
    }
}

/// So many begin together and end together: [`crate::DoubleBarrier`].
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    caller: Caller,
    barrier: crate::DoubleBarrier,
}

/// A client inside a [`DoubleBarrier`]. Dropping it leaves without waiting for the others.
#[derive(Debug)]
#[must_use = "dropping it leaves the double barrier"]
pub struct Membership {
    member: crate::Membership,
    caller: Caller,
}

impl DoubleBarrier {
    pub(super) fn new(caller: &Caller, barrier: crate::DoubleBarrier) -> Self {
        DoubleBarrier { caller: caller.clone(), barrier }
    }

    /// Waits until enough others want to enter too.
    ///
    /// # Errors
    /// As [`crate::DoubleBarrier::enter`].
    pub fn enter(&self) -> Result<Membership, Error> {
        let member = self.caller.wait(self.barrier.enter())?;
        Ok(Membership { member, caller: self.caller.clone() })
    }

    /// [`DoubleBarrier::enter`] for at most `patience` altogether; `None`: not enough others came, and we
    /// have gone.
    ///
    /// # Errors
    /// As [`crate::DoubleBarrier::enter`].
    pub fn enter_timeout(&self, patience: Duration) -> Result<Option<Membership>, Error> {
        let member = self.caller.wait(self.barrier.enter_timeout(patience))?;
        Ok(member.map(|member| Membership { member, caller: self.caller.clone() }))
    }
}

impl Membership {
    /// Waits until all who entered with us leave too, or have died.
    ///
    /// # Errors
    /// As [`crate::Membership::leave`].
    pub fn leave(self) -> Result<(), Error> {
        self.caller.wait(self.member.leave())
    }

    /// [`Membership::leave`] that waits for the others for at most `patience` altogether; `false`: some are
    /// still inside, and we have left.
    ///
    /// # Errors
    /// As [`crate::Membership::leave`].
    pub fn leave_timeout(self, patience: Duration) -> Result<bool, Error> {
        self.caller.wait(self.member.leave_timeout(patience))
    }
}
