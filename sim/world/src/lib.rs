//! Simulated world under `rowlock_env`: whole processes, unchanged, on one thread, in virtual time, from one
//! seed.
//!
//! The map:
//! - [`heart`]: shared services of the components: true time, future events, trace;
//! - [`executor`]: tasks in seeded order; timers; hosts that are killed, paused, switched off;
//! - [`clock`]: each host's own clocks, which drift and jump;
//! - [`network`]: streams with latency, one-way partitions, lost connections;
//! - [`disk`]: files whose unflushed writes are kept, dropped, torn or reordered by a power loss;
//! - [`samples`]: check that golden samples of a format have every variant;
//! - [`spoilt`]: corrupted input bytes, for the tests of parsers;
//! - [`trace`]: record of events for people, and its fingerprint.
//!
//! Rowlock's nodes and clients are unknown here. Architecture invariant: no thread, no clock, no randomness
//! except [`rng`], no unordered iteration.

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
