//! Recipes: what can be built from znodes, sessions and watches. So far the fair mutex.

pub(crate) mod barrier;
pub(crate) mod counter;
pub(crate) mod double_barrier;
pub(crate) mod guard;
pub(crate) mod latch;
pub(crate) mod mutex;
pub(crate) mod names;
pub(crate) mod place;
pub(crate) mod plain;
pub(crate) mod queue;
