//! The client against real nodes of the test kit, with everything that goes wrong.

mod examples;
mod support;
mod switches;
