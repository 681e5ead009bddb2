//! Watches: the paths that connections of this node watch, and the delivery of events for each change.
//!
//! In the flow: apply passes every change to [`WatchTable::fire`], which pushes encoded events into the
//! outboxes of the watching connections; connections add and remove watches while they hold the read lock of
//! the state. Watches belong to a connection, live in this node's memory and are not replicated.
//!
//! Must never wait, touch a socket, or read the state.

mod kinds;
mod table;
mod weight;

pub use kinds::Kinds;
pub(crate) use table::event_frame;
pub use table::{TooManyWatches, WatchCounts, WatchTable};
pub use weight::WatchBounds;

/// A client connection of this node, numbered from 1 in the order of accepting; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);
