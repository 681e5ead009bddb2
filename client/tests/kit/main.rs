//! The client against real nodes of the test kit, with everything that goes wrong.

mod deadlock;
mod examples;
mod opposite_orders;
mod portable;
mod support;
mod switches;
