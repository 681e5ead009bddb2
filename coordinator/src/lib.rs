//! A Rowlock node: Raft, storage, sessions, watches, client listener, HTTP.
//!
//! The binary runs one node per process (`rowlock serve`). A program can also **embed** a node:
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
//! node.shutdown().await; // frees all tasks, sockets, and the lock of the data folder
//! # Ok(())
//! # }
//! ```
//!
//! # The application's entry points
//!
//! [`NodeConfig`] configures a node. [`NodeConfig::single`] is a cluster of one on free loopback ports;
//! [`NodeConfig::from_toml`] is one node of the cluster in a `cluster.toml`. All fields are public: change
//! them before the start.
//!
//! [`Node::start`] opens the data folder, listens, and returns before the node serves clients;
//! [`Node::serving`] waits until the node serves. [`Node::status`] publishes role, leader, term and applied
//! index. [`Node::stopped`] resolves after a failure of the node (an unwritable disk, for instance): shut the
//! node down and alert a person.
//!
//! [`Node::shutdown`] stops the tasks in order and waits for their end. Dropping a [`Node`] stops the node in
//! the background; the folder can be opened again after the end of the old node.
//!
//! # Process-wide effects
//!
//! A node has no global state: any number of nodes run in one process, each with its own folder. (Exception:
//! sled, the storage of the lock history, keeps a pool of seven idle threads after the nodes' end, unless
//! `config.history.enabled` is off for all nodes.) A node never ends the process, installs no signal handler
//! and no logger (log events go to `tracing`), reads no environment variable, and writes only into its data
//! folder.
//!
//! # Features
//!
//! Both are on. `access` has HTTP with the console, leases for HTTP clients, reports and the lock history;
//! `cluster` has what nodes need to find each other, to change members and versions, to notice lost data, and
//! what operators do. Without them a node is ZooKeeper's protocol, locks, Raft and disk: the voters of its
//! configuration form the cluster, and nothing notices that a node has lost its data.
//!
//! # The caller's duties
//!
//! 1. A tokio runtime with timers and IO, whose threads are not blocked for long. A blocked node misses its
//!    heartbeats, and the other nodes elect a new leader. Use a separate runtime for heavy work.
//! 2. One data folder per node, on a disk with space for the log (bounded, see `docs/configuration.md`).
//! 3. An odd number of voters in different failure domains. A cluster of one survives restarts, not the loss
//!    of its disk: use a cluster of one for a single machine, for tests, and for trials.
//! 4. `addresses().http` has no authentication without `tls` or `token_file` in `[http]`: keep the listener
//!    on loopback.
//!
//! Embedding needs only the names at this level. The modules are internal, public for the binary, the tools
//! and the benchmarks of this repository, and change with every release.

#[cfg(feature = "access")]
pub mod access;
#[warn(missing_docs)]
mod assembly;
#[cfg(feature = "cluster")]
pub mod cluster;
#[warn(missing_docs)]
pub mod config;
pub mod limits;
pub mod node;

pub use assembly::{Addresses, Node, NodeError, NotExpired, NotServing, SnapshotFailed, StartError, Vitals};
#[cfg(feature = "cluster")]
pub use assembly::{BootstrapError, LogSwitch};
pub use config::{ClusterConfig, ConfigError, NodeConfig};
pub use rowlock_consensus::node_hook::{Ballot, NodeHook, Position};
pub use rowlock_consensus::status::Status;
pub use rowlock_env::time::Instant;
pub use rowlock_metrics::Role;
pub use rowlock_proto::{NodeId, SessionId};

#[cfg(test)]
#[allow(dead_code, reason = "shared test support, partly unused in this crate")]
#[path = "../raft/consensus/src/peer/tests/support.rs"]
mod peer_support;
