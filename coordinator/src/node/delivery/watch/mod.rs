//! Watches: which connection of this node wants to hear about which path, and what a change tells to whom.
//!
//! In the flow: apply hands every change to [`WatchTable::fire`], which puts encoded events into the outboxes
//! of the connections that watch; connections register and remove watches while they hold the read lock of
//! the state. Watches belong to a connection, live in this node's memory and are not replicated.
//!
//! Must never do: wait, touch a socket, or look at the state.

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
