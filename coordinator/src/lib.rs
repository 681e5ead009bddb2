//! A Rowlock node: Raft, storage, sessions, watches, client listener, HTTP.
//!
//! The binary runs one node per process (`rowlock serve`). A program can as well run a node **inside
//! itself**:
//!
//! ```
//! use std::time::Duration;
//! use rowlock_client::Client;
//! use rowlock_coordinator::{Instant, Node, NodeConfig};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let node = Node::start(NodeConfig::single(folder.path())).await?;
//! node.serving(Instant::now() + Duration::from_secs(10)).await?;
//!
//! let client = Client::connect(node.addresses().client.to_string()).await?;
//! let guard = client.mutex("orders/42").lock().await?;
//! println!("held with fencing token {}", guard.token());
//! guard.release().await?;
//!
//! client.close().await?;
//! node.shutdown().await; // nothing of the node is left: no task, no socket, no lock on its folder
//! # Ok(())
//! # }
//! ```
//!
//! # What an application uses
//!
//! [`NodeConfig`] says what a node is: [`NodeConfig::single`] is a cluster of one on free loopback ports,
//! [`NodeConfig::from_toml`] one node of a cluster that a `cluster.toml` describes. Its fields are open:
//! change them before the start.
//!
//! [`Node::start`] opens the data folder, listens, and returns before clients are served; [`Node::serving`]
//! waits for that. [`Node::status`] can be watched: role, leader, term, how far the log is applied.
//! [`Node::stopped`] resolves when the node has failed by itself (a disk that does not write, for instance):
//! shut it down then, and tell a person.
//!
//! [`Node::shutdown`] stops in order and waits for the end. Dropping a [`Node`] tells it to stop and does not
//! wait; a folder can be opened again only when the former node has ended.
//!
//! # What it does not do
//!
//! It has no global state: as many nodes as you like run in one process, each with its own folder. (One thing
//! outlives the nodes of a process: the lock history's storage, sled, keeps a pool of seven idle threads,
//! unless `config.history.enabled` is off for all of them.) It never ends the process, installs no signal
//! handler and no logger (it speaks through `tracing`), reads no environment variable, and writes nowhere but
//! into its data folder.
//!
//! # The caller's duties
//!
//! 1. A tokio runtime with timers and IO, whose threads are not blocked for long. A node that cannot run
//!    misses its heartbeats: the others elect a leader without it. Give it a runtime of its own beside heavy
//!    work.
//! 2. One data folder per node, on a disk that it may fill (the log is kept within bounds, see
//!    `docs/configuration.md`).
//! 3. An odd number of voters in different failure domains. A cluster of one survives restarts, not the loss
//!    of its disk: it is right for one machine, for tests, and for trying things.
//! 4. `addresses().http` has no authentication unless `[http]` asks for it: leave it on loopback.
//!
//! The names at this level are what embedding needs. The modules are the inside of a node, public for the
//! binary, the tools and the benchmarks of this repository; they change with every release.

pub mod api;
pub mod apply;
pub mod audit;
pub mod autopilot;
pub mod bootstrap;

pub mod comparison;
#[warn(missing_docs)]
pub mod config;
pub mod delivery;
mod disk_watch;
mod guesses;
pub mod http;
pub mod leader_duties;
pub mod lock_sweep;
pub mod moment;
#[warn(missing_docs)]
pub mod node;
pub mod operations;
pub mod proposer;
pub mod reconfig;
pub mod replica;
pub mod report;
pub mod service;
pub mod slow;
mod slow_links;
pub mod status_publisher;
pub mod sweep;
pub mod tokens;
pub mod trace;
pub mod upgrade;
pub mod way;
pub mod zk;

pub use config::{ClusterConfig, ConfigError, NodeConfig};
pub use node::{
    Addresses, LogSwitch, Node, NodeError, NotExpired, NotServing, SnapshotFailed, StartError, Vitals,
};
pub use rowlock_env::time::Instant;
pub use rowlock_proto::{NodeId, SessionId};
pub use rowlock_types::node_hook::{Ballot, NodeHook, Position};
pub use rowlock_types::status::{Role, Status};

#[cfg(test)]
#[allow(dead_code, reason = "another crate's test support, of which some is used here")]
#[path = "../raft/consensus/src/peer/tests/support.rs"]
mod peer_support;
