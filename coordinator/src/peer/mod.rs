//! Node to node: bincode frames over TCP. Carries Raft's messages, forwarded proposals, session touches and
//! the operators' requests; understands none of them.
//!
//! A node dials every other node once per [`Lane`] and listens for the others' connections. On a connection
//! the dialer asks and the listener answers; answers carry the number of their request and may overtake each
//! other, except on the lanes where order matters.
//!
//! ```text
//! Peer::call ──> queue ──> lane task ──frames──> connection task ──> RaftService   (raft/rpc.rs)
//! ForwardLink ─> queue ──> link task ──frames──>       "         ──> PeerService   (node.rs)
//! ```
//!
//! The caller's duties:
//! 1. Every call has a deadline; [`PeerError::may_have_happened`] says whether a failed one may have taken
//!    effect.
//! 2. Nothing is resent here. A connection that breaks fails all that waits on it; the next call dials again.
//! 3. [`forward::ForwardLink`] keeps order; after its last event nothing more goes through it: open another.
//!
//! Invariant: bytes from the network never panic, never allocate beyond `limits::PEER_FRAME_MAX_BYTES` per
//! connection, and are decoded only after the other side has named this cluster and this node.

pub mod error;
pub mod forward;
pub mod frame;
pub mod handshake;
pub mod introduction;
pub mod message;
pub mod pool;
pub mod server;
pub mod service;

mod connection;
mod dial;
mod lane;
mod urgency;
mod wire;

#[cfg(test)]
pub(crate) mod tests;

pub use error::PeerError;
pub use forward::{ForwardEvent, ForwardLink};
pub use handshake::{HandshakeRefusal, Identity, Lane};
pub use introduction::Introduction;
pub use message::{Refusal, Request, Response};
pub use pool::{Peer, PeerPool};
pub use server::PeerServer;
pub use service::{PeerService, RaftConnection, RaftService};
