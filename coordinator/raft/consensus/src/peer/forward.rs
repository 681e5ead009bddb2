//! Forwarded proposals: batches on their way to the leader over a link of their own.
//!
//! Batches reach the leader's intake in the order in which they were sent. A link ends with its first refusal
//! or with its connection, and is not mended: its owner decides what to do with the batches that come back.

use rowlock_state::command::Proposal;
use rowlock_transport::{Lane, LinkEvent, PeerError, PeerLink};
use rowlock_types::limits::{BATCH_MAX_BYTES, PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES};

use super::message::{Refusal, Request, Response};
use super::pool::{Peer, decode};

// A batch of the usual size fits into a frame, and some of them into the window.
const _: () = assert!(BATCH_MAX_BYTES < PEER_FRAME_MAX_BYTES);
const _: () = assert!(BATCH_MAX_BYTES < PEER_FORWARD_WINDOW_BYTES);

/// What has happened on a link. `Refused` and `Lost` are the last event, and give back every batch that was
/// not acknowledged, in the order in which they were sent.
#[derive(Debug, PartialEq, Eq)]
pub enum ForwardEvent {
    /// There may be room. The leader may have taken a batch, whose outcome comes with the log.
    Moved,
    /// None of these was taken, nor will be: all may be sent elsewhere.
    Refused { untaken: Vec<Vec<Proposal>>, refusal: Refusal },
    /// There is no connection any more, or never was. It is not known whether the leader has these.
    Lost { unknown: Vec<Vec<Proposal>>, error: PeerError },
}

/// The sending end, to the leader of one term, with a copy of every batch that was not acknowledged. Dropping
/// it ends the link at once: what was not acknowledged may or may not reach the leader.
pub struct ForwardLink {
    peer: Peer,
    term: u64,
    link: PeerLink<Vec<Proposal>>,
}

impl ForwardLink {
    pub(super) fn open(peer: &Peer, term: u64) -> ForwardLink {
        ForwardLink { peer: peer.clone(), term, link: peer.link(Lane::Proposals) }
    }

    /// Whether a batch may be sent now. If not, there may be room after the next event.
    pub fn has_room(&self) -> bool {
        self.link.has_room()
    }

    /// Whether the leader has batches that it has not acknowledged.
    pub fn is_waiting(&self) -> bool {
        self.link.unanswered().next().is_some()
    }

    /// Sends a batch behind all earlier ones. It leaves in [`ForwardLink::next`]. To be called where there is
    /// room.
    ///
    /// Errors: it does not fit a frame, and never will.
    pub fn send(&mut self, batch: Vec<Proposal>) -> Result<(), PeerError> {
        assert!(!batch.is_empty(), "a batch has a command");
        let request = Request::Forward { term: self.term, batch };
        let body = request.encode();
        let Request::Forward { batch, .. } = request else { unreachable!("Invariant: made above") };
        self.link.send(&body, batch)
    }

    /// Dials, writes and reads until something has happened; waits for ever after the last event. Cancel
    /// safe.
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
