//! Faults of a run: a [`Script`], written by hand, read from a file, or generated from a seed.
//!
//! A script is data: faults, targets and times; `crate::cluster` applies the script to the world. The text
//! form has one fault per line; people edit it and `crate::shrink` shortens it.

mod budget;
mod cuts;
mod draw;
mod generate;
mod kind;
mod mix;
mod script;
mod span;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_generate;
mod text;
mod torrent;

pub use cuts::generate_cuts;
pub use generate::{Ground, generate};
pub use kind::Kind;
pub use mix::{Mix, Pace, WEIGHTED, seed_of_weighted, weighted_by};
pub use script::{CrashPoint, Down, Fault, Moment, Script, Step, Target};
pub use span::{read as read_span, show as show_span};
pub use text::ScriptError;
pub use torrent::Torrent;
