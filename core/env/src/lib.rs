//! Access to the outside: clock, tasks, randomness, network, disk.
//!
//! All impure code in Rowlock reaches the outside through this crate only (.cargo/clippy.toml bans the direct
//! ways). So a simulator can run the same code with its own clock, network and disk ([`world`]). Otherwise
//! every function calls tokio and the operating system.
//!
//! Invariant: no type of tokio's or std's IO, time or task modules appears in a signature of another crate.

pub mod backoff;
pub mod busy;
pub mod busy_poll;
pub mod choice;
pub mod disk;
pub mod duty;
pub mod guard;
pub mod mutant;
pub mod net;
pub mod process;
pub mod rare;
pub mod rate;
pub mod reload;
mod resolve;
pub mod rng;
pub mod sync;
pub mod task;
pub mod time;
pub mod turnstile;
pub mod worker;
pub mod world;
