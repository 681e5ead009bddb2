//! Connections between the nodes of a cluster: authentication, one connection per lane, frames, deadlines.
//! This crate carries bytes and decodes none of them.
//!
//! A node dials every other node once per [`Lane`] and listens for connections of the other nodes. On a
//! connection the dialer sends requests and the listener answers; answers carry the number of their request
//! and may overtake each other, except on the lanes where order matters.
//!
//! ```text
//! Peer::call ──> queue ──> lane task: PeerLink ──frames──> connection task ──> Conversation  (layer above)
//! Peer::link ──> its owner's task:    PeerLink ──frames──>        "        ──>      "
//! ```
//!
//! # Guarantees
//!
//! - A node talks only to nodes of its cluster with a common protocol version. A rejected peer receives the
//!   reason ([`HandshakeRefusal`]) but no data of this node. With certificates the node knows the identity of
//!   its peer ([`Security`]). A node number stays bound to the first data folder that used the number
//!   ([`KnownIncarnations`]).
//! - Every call has a deadline; [`PeerError::may_have_happened`] says whether a failed call may have taken
//!   effect. A sent request is never reported as "not sent".
//! - No request is sent twice. A broken connection fails all its pending calls; the next call dials again,
//!   after a growing pause.
//! - Requests of one [`PeerLink`] leave in the order of their submission and begin in that order. On the
//!   proposals lane the listener accepts no request after a refusal.
//! - A connection with a silent peer closes within seconds, whatever TCP reports.
//! - Bytes from the network never panic, never allocate beyond `limits::PEER_FRAME_MAX_BYTES` per connection,
//!   and reach the layer above only after the peer has named this cluster and this node.
//! - Every queue has its bound in [`limits`], and a [`Tally`](rowlock_metrics::memory::Tally)
//!   counts the memory.
//!
//! # Limits
//!
//! The layer above encodes and decodes messages ([`Conversation`]). Raft, proposals and sessions appear only
//! as names of lanes. This crate uses no disk: the layer above stores the known nodes. The versions of a node
//! ([`rowlock_state::version`]) cover all carried messages: a changed message needs another version.

mod connection;
mod error;
pub mod frame;
pub mod handshake;
pub mod limits;
mod link;
mod pool;
mod security;
mod server;
mod service;
mod wire;

#[cfg(test)]
mod tests;

pub use error::PeerError;
pub use handshake::{HandshakeRefusal, Identity, Lane};
pub use link::{LinkEvent, PeerLink};
pub use pool::{Peer, Pool};
pub use security::Security;
pub use server::{RefusalListener, Server};
pub use service::{Answer, Conversation, KnownIncarnations, NotRecorded, Service};
