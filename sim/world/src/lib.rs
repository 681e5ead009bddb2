//! A simulated world under `rowlock_env`: whole processes, unchanged, on one thread, in virtual time, from
//! one seed.
//!
//! The map:
//! - [`heart`]: what the parts of the world share: true time, future events, randomness;
//! - [`executor`]: tasks, of which a seeded choice runs next; timers; hosts that are killed, paused, switched
//!   off;
//! - [`clock`]: each host's own clocks, which drift and jump;
//! - [`network`]: streams with latency, one-way partitions, lost connections;
//! - [`disk`]: files whose unflushed writes are kept, dropped, torn or reordered when the power goes;
//! - [`samples`]: whether golden samples of a format have every variant;
//! - [`spoilt`]: corrupted input bytes, for the tests of the code that reads them;
//! - [`trace`]: what happened, for people, and its fingerprint.
//!
//! Nothing here knows Rowlock's nodes or clients. Architecture invariant: no thread, no clock, no randomness
//! but [`rng`], no unordered iteration.

pub mod clock;
pub mod disk;
pub mod executor;
pub mod heart;
pub mod network;
pub mod rng;
pub mod samples;
pub mod spoilt;
pub mod time;
pub mod trace;
