//! The client against real nodes of the test kit, with everything that goes wrong.

#![allow(clippy::unwrap_used)]
// Each example is a program with a `support` of its own.
#![allow(clippy::duplicate_mod)]

#[cfg(feature = "blocking")]
mod blocking;
mod by_load;
mod deadlock;
mod detached;
mod ending;
mod examples;
mod members;
mod opposite_orders;
mod recipes;
mod reports;
mod support;
mod switches;
#[cfg(feature = "tls")]
mod tls;
