//! Common lock designs, as models on a simulated world, compared with each other and with the claims about
//! them.
//!
//! The map:
//! - [`wire`]: requests and replies over the world's network;
//! - [`redis`], [`database`], [`zk`]: models of the servers beneath locks, with their client libraries;
//! - [`design`]: interface of a lock design; [`recipes`]: the published designs;
//! - [`workload`]: behavior of every client; [`store`]: the protected data; [`scenario`]: the faults;
//! - [`outside_view`]: the observer that measures; [`stage`]: one design in one scenario with one seed;
//! - [`table`]: all runs; [`claims`]: claims about designs, confirmed or refuted; [`report`]: the table as
//!   text, Markdown, HTML.
//!
//! Architecture invariant: nothing here depends on Rowlock. A crate with Rowlock's client implements
//! [`design::Design`].

use std::time::Duration;

pub mod claims;
pub mod condition;
pub mod database;
pub mod design;
pub mod outside_view;
pub mod recipes;
pub mod redis;
pub mod report;
pub mod scenario;
pub mod stage;
pub mod store;
pub mod table;
#[cfg(test)]
mod testing;
pub mod wire;
pub mod workload;
pub mod zk;

/// Time to live of every lock and timeout of every session, equal in all designs for comparison. The notes
/// use 30 s; a third of 30 s keeps runs short and every ratio (a watchdog renews at a third) unchanged.
pub const TTL: Duration = Duration::from_secs(10);

pub const LOCK: &str = "stock";
