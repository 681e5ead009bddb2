//! Common lock designs, as models on a simulated world, compared with each other and with the claims about
//! them.
//!
//! The map:
//! - [`wire`]: requests and replies over the world's network;
//! - [`redis`], [`database`], [`zk`]: models of the servers that locks are built on, with their client
//!   libraries;
//! - [`design`]: what a lock design is; [`recipes`]: the published ones;
//! - [`workload`]: what every client does with a lock; [`store`]: what the lock protects; [`scenario`]: the
//!   faults;
//! - [`outside_view`]: sees everything and measures; [`stage`]: one design in one scenario with one seed;
//! - [`table`]: all of them; [`claims`]: claims about them, confirmed or refuted; [`report`]: as text,
//!   Markdown, HTML.
//!
//! Architecture invariant: nothing here depends on Rowlock. A crate that does implements [`design::Design`].

use std::time::Duration;

pub mod claims;
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
pub mod wire;
pub mod workload;
pub mod zk;

/// The time to live of every lock and the timeout of every session, of all designs, so that times can be
/// compared. The notes use 30 s; a third of it keeps runs short and every ratio (a watchdog renews at a
/// third) unchanged.
pub const TTL: Duration = Duration::from_secs(10);

pub const LOCK: &str = "stock";
