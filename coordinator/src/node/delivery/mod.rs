//! What reaches a client's connection without its asking, or later than it asked: the queue towards the
//! connection's task, and the ways into it.
//!
//! In the flow: below the connections (`client/`), which take from their [`outbox`]; above `state`, whose
//! events come through [`events::Dispatcher`] while apply holds the write lock. The [`registry`] knows which
//! connection a session is at, [`watch`] which connection watches what. The proposer, the sessions, the
//! reports and the reconfiguration answer through the outbox that came with the question, and know no
//! connection.
//!
//! Must never do: wait, or touch a socket.

pub mod events;
pub mod outbox;
pub mod registry;
pub(crate) mod stats;
pub mod watch;
