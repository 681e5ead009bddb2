//! Asynchronous output of a client connection: watch events, notices and late replies; the queue to the
//! connection's task, and the senders to that queue.
//!
//! In the flow: below the connections (`client/`), which read their [`outbox`]; above `state`, whose events
//! arrive through [`events::Dispatcher`] while apply holds the write lock. The [`registry`] maps sessions to
//! connections, [`watch`] maps paths to connections. The proposer, the sessions, the reports and the
//! reconfiguration reply through the outbox that came with the request, and know no connection.
//!
//! Must never wait or touch a socket.

pub mod events;
pub mod outbox;
pub mod registry;
pub(crate) mod stats;
pub mod watch;
