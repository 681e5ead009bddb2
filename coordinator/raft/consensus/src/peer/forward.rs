//! Forwarded proposals: batches to the leader over a link of their own.
//!
//! Batches reach the leader's intake in the order of sending. A link ends with its first refusal or with its
//! connection, and never reconnects: the owner decides about the returned batches.

use rowlock_state::command::Proposal;
use rowlock_transport::limits::{PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES};
use rowlock_transport::{Lane, LinkEvent, PeerError, PeerLink};

use super::message::{Refusal, Request, Response};
use super::pool::{Peer, decode};
use crate::limits::BATCH_MAX_BYTES;

// A usual batch fits into a frame, and several fit into the window.
const _: () = assert!(BATCH_MAX_BYTES < PEER_FRAME_MAX_BYTES);
const _: () = assert!(BATCH_MAX_BYTES < PEER_FORWARD_WINDOW_BYTES);

/// Event of a link. `Refused` and `Lost` are the last event, and return every unacknowledged batch, in the
/// order of sending.
#[derive(Debug, PartialEq, Eq)]
pub enum ForwardEvent {
    /// There may be room. The leader may have accepted a batch, whose outcome comes with the log.
    Moved,
    /// The leader has accepted none of these batches, and never will: the owner may send all elsewhere.
    Refused { untaken: Vec<Vec<Proposal>>, refusal: Refusal },
    /// The connection ended, or dialing failed. The leader may or may not have these batches.
    Lost { unknown: Vec<Vec<Proposal>>, error: PeerError },
}

/// Sending end, to the leader of one term, with a copy of every unacknowledged batch. Dropping the link
/// closes its connection at once: unacknowledged batches may or may not reach the leader.
pub struct ForwardLink {
    peer: Peer,
    term: u64,
    link: PeerLink<Vec<Proposal>>,
}

impl ForwardLink {
    pub(super) fn open(peer: &Peer, term: u64) -> ForwardLink {
        ForwardLink { peer: peer.clone(), term, link: peer.link(Lane::Proposals) }
    }

    /// Returns whether a batch may be sent now. If not, there may be room after the next event.
    pub fn has_room(&self) -> bool {
        self.link.has_room()
    }

    /// Returns whether the leader has unacknowledged batches.
    pub fn is_waiting(&self) -> bool {
        self.link.unanswered().next().is_some()
    }

    /// Queues a batch behind all earlier ones; [`ForwardLink::next`] writes the batch. The caller checks
    /// `has_room` first.
    ///
    /// Errors: the batch exceeds the frame size, and always will.
    pub fn send(&mut self, batch: Vec<Proposal>) -> Result<(), PeerError> {
        assert!(!batch.is_empty(), "a batch has a command");
        let request = Request::Forward { term: self.term, batch };
        let body = request.encode();
        let Request::Forward { batch, .. } = request else { unreachable!("Invariant: made above") };
        self.link.send(&body, batch)
    }

    /// Dials, writes and reads until the next event; waits for ever after the last event. Cancel safe.
    pub async fn next(&mut self) -> ForwardEvent {
        let (batch, answer) = match self.link.next().await {
            LinkEvent::Moved => return ForwardEvent::Moved,
            LinkEvent::Ended { unanswered, error } => {
                return ForwardEvent::Lost { unknown: unanswered, error };
            }
            LinkEvent::Answered { tag, answer } => (tag, decode(self.peer.node(), &answer)),
        };
        if answer == Ok(Response::Forwarded) {
            return ForwardEvent::Moved;
        }
        let mut all = vec![batch];
        all.extend(self.link.close());
        let garbled = |reason| PeerError::Garbled { node: self.peer.node(), reason };
        match answer {
            Ok(Response::Refused(refusal)) => ForwardEvent::Refused { untaken: all, refusal },
            Ok(other) => ForwardEvent::Lost { unknown: all, error: garbled(format!("{other:?}")) },
            Err(error) => ForwardEvent::Lost { unknown: all, error },
        }
    }
}
