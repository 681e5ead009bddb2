//! Recipes, built from queues, znodes, sessions and watches.

pub(crate) mod acquire;
pub(crate) mod claims;
pub(crate) mod counter;
pub(crate) mod double_barrier;
pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod latch;
pub(crate) mod leaders;
pub(crate) mod loss;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod names;
pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod reentrant;
pub(crate) mod request;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod sentinel;
pub(crate) mod served;
pub(crate) mod site;
pub(crate) mod watched;
