//! Recipes: what can be built from znodes, sessions and watches. So far the fair mutex.

pub(crate) mod guard;
pub(crate) mod mutex;
pub(crate) mod names;
pub(crate) mod place;
pub(crate) mod queue;
