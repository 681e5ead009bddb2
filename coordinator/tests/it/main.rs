//! Nodes inside a test's process, as a program that embeds them sees them. `embed.rs` is a program of its
//! own: it counts threads and tasks.

mod disconnect_grace;
mod failed_snapshot;
mod graceful_stop;
#[cfg(feature = "access")]
mod history;
mod memory;
mod node_hook;
mod secure_clients;
mod security;
mod support;
#[cfg(not(any(feature = "access", feature = "cluster")))]
mod without_features;
