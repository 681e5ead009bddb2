//! Connections between the nodes of a cluster: who is at the other end, one connection per lane, frames,
//! deadlines. It carries bytes and understands none of them.
//!
//! A node dials every other node once per [`Lane`] and listens for the others' connections. On a connection
//! the dialer asks and the listener answers; answers carry the number of their request and may overtake each
//! other, except on the lanes where order matters.
//!
//! ```text
//! Peer::call ──> queue ──> lane task: PeerLink ──frames──> connection task ──> Conversation  (layer above)
//! Peer::link ──> its owner's task:    PeerLink ──frames──>        "        ──>      "
//! ```
//!
//! # What it promises
//!
//! - A node talks only to nodes of its cluster that speak its version of the protocol and mean it, and is
//!   told in words what is wrong otherwise ([`HandshakeRefusal`]), but nothing of ours. With certificates it
//!   knows which node is at the other end ([`Security`]). The first data folder that a node number
//!   came with is the one that it must come with ([`KnownIncarnations`]).
//! - Every call has a deadline; [`PeerError::may_have_happened`] says whether a failed one may have taken
//!   effect. "Not sent" is never said of something that was.
//! - Nothing is sent twice. A connection that breaks fails all that waits on it; the next call dials again,
//!   after a pause that grows.
//! - Requests of one [`PeerLink`] leave in the order in which they were sent and are begun in that order. On
//!   the lane of proposals nothing is taken after a refusal.
//! - A connection whose other side has become silent is given up within seconds, whatever TCP believes.
//! - Bytes from the network never panic, never allocate beyond `limits::PEER_FRAME_MAX_BYTES` per connection,
//!   and are handed on only after the other side has named this cluster and this node.
//! - Every queue has its bound in `rowlock_types::limits`, and what is held is counted in a
//!   [`Tally`](rowlock_types::memory::Tally).
//!
//! # What it does not know
//!
//! No message: what a request says, and how an answer is read, is known above ([`Conversation`]).
//! Neither Raft nor proposals nor sessions, but for the names of the lanes that carry them. No disk: which
//! nodes are known is kept above. The versions that a node knows
//! ([`rowlock_types::versions`]) count for all that is carried: a changed message needs another version.

mod calls;
mod connection;
mod dial;
mod error;
pub mod frame;
pub mod handshake;
mod known_incarnations;
mod link;
mod pool;
mod round_trips;
mod security;
mod server;
mod service;
mod strangers;
mod wire;

#[cfg(test)]
mod tests;

pub use error::PeerError;
pub use handshake::{HandshakeRefusal, Identity, Lane};
pub use known_incarnations::{KnownIncarnations, NotRecorded};
pub use link::{LinkEvent, PeerLink};
pub use pool::{Peer, Pool};
pub use security::Security;
pub use server::{RefusalListener, Server};
pub use service::{Answer, Conversation, Service};
