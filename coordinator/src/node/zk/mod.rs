//! ZooKeeper's protocol: listener, handshake, one task per connection, four-letter words.
//!
//! In the flow: bytes arrive and frames become requests; writes go to the proposer, the local replica answers
//! reads; replies and watch events leave in the order that the protocol promises. Apply reaches connections
//! only through their outbox, by way of [`Dispatcher`](crate::node::delivery::events::Dispatcher) and
//! [`Registry`](crate::node::delivery::registry::Registry).
//!
//! Must never change the replicated state, decide about a session's life, or make apply wait for a client.

mod announcement;
mod connection;
mod context;
mod conversation;
mod end_reason;
mod four_letter_words;
mod handshake;
mod identity;
mod listener;
mod liveness_timer;
mod new_sessions;
mod pending;
mod pings;
mod read;
pub mod read_only;
pub(crate) mod reconfig;
mod sasl;
mod secure;
mod shared;
mod watching;
mod wire;
mod write;

#[cfg(test)]
pub(crate) mod tests;

pub use context::ClientContext;
pub use listener::{Doors, Listener, SecureDoor};
pub use new_sessions::NewSessions;
pub use new_sessions::Opener;
