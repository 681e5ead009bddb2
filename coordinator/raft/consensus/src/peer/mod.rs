//! What nodes say to each other, on the connections of `rowlock_transport`: Raft's messages, forwarded
//! proposals, session touches and the operators' requests.
//!
//! ```text
//! Peer::call, AppendPipeline ──> bytes ──> transport ──> bytes ──> Handler ──> RaftService   (raft/rpc.rs)
//! Peer::call, ForwardLink ─────> bytes ──>     "     ──>   "   ──>    "    ──> PeerService   (service.rs)
//! ```
//!
//! The caller's duties:
//! 1. Every call has a deadline; [`PeerError::may_have_happened`] says whether a failed one may have taken
//!    effect.
//! 2. Nothing is resent here. A connection that breaks fails all that waits on it; the next call dials again.
//! 3. A [`PeerLink`] and a [`ForwardLink`] keep order; after the last event nothing more goes through them:
//!    open another.

pub mod forward;
pub mod introduction;
pub mod message;
pub mod pool;
pub mod service;

mod folder_incarnations;
mod handler;
mod releases;

#[cfg(test)]
pub(crate) mod tests;

pub use forward::{ForwardEvent, ForwardLink};
pub use handler::PeerServer;
pub use introduction::Introduction;
pub use message::{Refusal, Request, Response};
pub use pool::{Peer, PeerPool};
pub use releases::Releases;
pub use rowlock_transport::{
    HandshakeRefusal, Identity, Lane, PeerError, PeerLink, RefusalListener, Security,
};
pub use service::{PeerService, RaftConnection, RaftService};
