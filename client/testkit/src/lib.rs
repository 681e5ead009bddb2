//! Cluster inside a test, with switches for faults.
//!
//! ```
//! use rowlock_testkit::Cluster;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::start(3).await; // real nodes in this process, in less than a second
//! let (alice, bob) = (cluster.client().await, cluster.client().await);
//!
//! let guard = alice.mutex("orders/42").lock().await?;
//! assert!(bob.mutex("orders/42").try_lock().await?.is_none());
//!
//! cluster.expire(alice.session_id()).await; // as if alice had fallen silent for too long
//! let next = bob.mutex("orders/42").lock().await?;
//! assert!(next.token() > guard.token());
//! guard.lost().await; // and alice learns of it
//! # Ok(())
//! # }
//! ```
//!
//! # What it is
//!
//! The nodes are those of the coordinator, with their log on disk in a temporary folder; only the waits are
//! shorter than in production (an election takes half a second, sessions may be as short as 100 ms). Every
//! connection, between nodes and from clients, goes through a door of the kit, on a loopback port that the
//! system chose: as many clusters as you like run beside each other. [`Cluster::endpoints`] works for clients
//! in other processes and languages too.
//!
//! Nodes are counted from 0; in logs, node 0 is called node 1.
//!
//! # What goes wrong
//!
//! | switch | what it does | until |
//! |---|---|---|
//! | [`Cluster::partition`] | two groups of nodes do not hear each other | [`Cluster::heal`] |
//! | [`Cluster::pause`] | a node exchanges nothing with anybody, as if it stood still | [`Cluster::resume`] |
//! | [`Cluster::cut_clients`] | a node exchanges nothing with clients | [`Cluster::heal`] |
//! | [`Cluster::isolate_client`] | a client exchanges nothing with any node | [`Cluster::heal`] |
//! | [`Cluster::disconnect_clients`] | the connections of a node's clients break | at once over |
//! | [`Cluster::expire`] | a session ends by the cluster's word | for good |
//! | [`Cluster::stop`], [`Cluster::kill`] | a node stops in order, or in the middle of what it does | [`Cluster::restart`] |
//!
//! A cut link is silent, like a real one: connections stay open, bytes wait and flow after `heal`.
//!
//! # In tests
//!
//! Every wait has a deadline, and panics with the awaited condition and the nodes' last status: a test needs
//! no `unwrap` for the kit. Nothing needs cleaning up: dropping the [`Cluster`] stops the nodes and removes
//! the folder. The kit is not for production: run nodes by `rowlock serve`, or see the crate
//! `rowlock-coordinator` for embedding.

#![warn(missing_docs)]

mod cluster;
mod node;
mod proxy;
mod rules;

pub use cluster::Cluster;
pub use proxy::PeerNetwork;
pub use rowlock_client::{Client, ClientBuilder, SessionId};
pub use rowlock_coordinator::{NodeConfig, Role, Status};

/// The code of docs/embedding.md runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
pub struct Guide;

/// The Rust code of README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Code of the crates' own pages, as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../rust/README.md")]
#[doc = include_str!("../../../coordinator/README.md")]
pub struct CrateReadmes;
