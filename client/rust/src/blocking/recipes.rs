//! Counters, latches and barriers, for callers that block.

use std::time::Duration;

use super::caller::Caller;
use super::handle::{Handle, calls};
use crate::error::Error;

/// A number that all clients share: [`crate::AtomicCounter`].
pub type AtomicCounter = Handle<crate::AtomicCounter>;
/// Opens after a number of count-downs: [`crate::CountDownLatch`].
pub type CountDownLatch = Handle<crate::CountDownLatch>;
/// Holds everybody back while it is raised: [`crate::Barrier`].
pub type Barrier = Handle<crate::Barrier>;
/// A number of members begin together and end together: [`crate::DoubleBarrier`].
pub type DoubleBarrier = Handle<crate::DoubleBarrier>;

impl AtomicCounter {
    calls! { "AtomicCounter" {
        get fn path() -> &str;
        ask fn get() -> i64;
        ask fn add(delta: i64) -> i64;
        ask fn set(value: i64) -> ();
        ask fn compare_and_set(expected: i64, new: i64) -> bool;
        ask fn remove() -> ();
    } }
}

impl CountDownLatch {
    calls! { "CountDownLatch" {
        get fn path() -> &str;
        ask fn count() -> u32;
        ask fn count_down() -> u32;
        wait fn wait() -> ();
        wait fn wait_timeout(patience: Duration) -> bool;
        ask fn remove() -> ();
    } }
}

impl Barrier {
    calls! { "Barrier" {
        get fn path() -> &str;
        ask fn raise() -> ();
        ask fn remove() -> ();
        ask fn is_raised() -> bool;
        wait fn wait() -> ();
        wait fn wait_timeout(patience: Duration) -> bool;
    } }
}

impl DoubleBarrier {
    calls! { "DoubleBarrier" {
        get fn path() -> &str;
        wait fn enter() -> Membership, Membership::new;
        wait fn enter_timeout(patience: Duration) -> Option<Membership>, Membership::maybe;
    } }
}

/// A client inside a [`DoubleBarrier`]. Dropping it leaves without waiting for the others.
#[derive(Debug)]
#[must_use = "dropping it leaves the double barrier"]
pub struct Membership {
    member: crate::Membership,
    caller: Caller,
}

impl Membership {
    fn new(caller: &Caller, member: crate::Membership) -> Self {
        Membership { member, caller: caller.clone() }
    }

    fn maybe(caller: &Caller, member: Option<crate::Membership>) -> Option<Self> {
        member.map(|member| Membership::new(caller, member))
    }

    /// The path of our znode.
    pub fn path(&self) -> String {
        self.member.path()
    }

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
