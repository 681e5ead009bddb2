//! Messages between nodes, on the connections of `rowlock_transport`: Raft's messages, forwarded proposals,
//! session touches and operators' requests.
//!
//! ```text
//! Peer::call, AppendPipeline ──> bytes ──> transport ──> bytes ──> Handler ──> RaftService   (raft/rpc.rs)
//! Peer::call, ForwardLink ─────> bytes ──>     "     ──>   "   ──>    "    ──> PeerService   (service.rs)
//! ```
//!
//! The caller's duties:
//! 1. Set a deadline for every call; [`PeerError::may_have_happened`] says whether a failed call may have
//!    taken effect.
//! 2. Repeat failed requests if needed: this module resends nothing. A broken connection fails all its
//!    pending calls; the next call dials again.
//! 3. Open another [`PeerLink`] or [`ForwardLink`] after the last event. A link keeps the order of its
//!    requests.

pub mod message;
pub mod pool;
pub mod service;

mod releases;

#[cfg(test)]
pub(crate) mod tests;

pub use message::{Introduction, Refusal, Request, Response};
pub use pool::{ForwardEvent, ForwardLink, Peer, PeerPool};
pub use releases::Releases;
pub use rowlock_transport::{
    HandshakeRefusal, Identity, Lane, PeerError, PeerLink, RefusalListener, Security,
};
pub use service::{PeerServer, PeerService, RaftConnection, RaftService};
