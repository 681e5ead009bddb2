//! Nodes inside a test's process, from the view of an embedding program. `embed.rs` is a separate program: it
//! counts threads and tasks.

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
#[cfg(feature = "cluster")]
mod upgrade;
#[cfg(not(any(feature = "access", feature = "cluster")))]
mod without_features;
