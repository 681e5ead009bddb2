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
mod conversation;
mod end_reason;
mod four_letter_words;
mod handshake;
mod identity;
mod listener;
mod liveness_timer;
mod pending;
mod read;
pub mod read_only;
mod sasl;
mod secure;
mod shared;
mod wire;

#[cfg(test)]
pub(crate) mod tests;

pub use listener::{Doors, Listener, SecureDoor};
#[cfg(feature = "cluster")]
pub(crate) use read::config_version;
pub use shared::{ClientContext, NewSessions, Opener};
