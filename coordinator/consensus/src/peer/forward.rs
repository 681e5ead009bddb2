//! Forwarded proposals: an ordered stream of batches to the leader over a connection of its own.
//!
//! Batches reach the leader's proposer in the order in which they were sent. A link ends with its first
//! refusal or with its connection, and is not mended: its owner decides what to do with the batches that come
//! back.

use rowlock_proto::NodeId;
use rowlock_state::command::Proposal;
use rowlock_transport::{NotSent, Stream, StreamEvent, Verdict};
use rowlock_types::codec;
use rowlock_types::limits::{BATCH_MAX_BYTES, PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES};

use super::message::{Refusal, Request, Response};

// A batch of the usual size fits into a frame, and some of them into the window.
const _: () = assert!(BATCH_MAX_BYTES < PEER_FRAME_MAX_BYTES);
const _: () = assert!(BATCH_MAX_BYTES < PEER_FORWARD_WINDOW_BYTES);

/// What became of the batches of a link. Acknowledged ones are with the leader's proposer; their outcome
/// comes with the log.
pub type ForwardEvent = StreamEvent<Vec<Proposal>, Refusal>;

/// A batch was not accepted; it comes back to the caller.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Too much is unacknowledged: try again after the next `Acked`.
    #[error("too many forwarded batches wait for the leader")]
    Full(Vec<Proposal>),
    /// The link has ended, as its last event says.
    #[error("the link to the leader has ended")]
    Ended(Vec<Proposal>),
    /// It would not fit a frame; it never will.
    #[error("a batch of forwarded proposals is too large for a frame")]
    TooLarge(Vec<Proposal>),
}

impl SendError {
    fn of(reason: NotSent, batch: Vec<Proposal>) -> SendError {
        match reason {
            NotSent::Full => SendError::Full(batch),
            NotSent::Ended => SendError::Ended(batch),
            NotSent::TooLarge => SendError::TooLarge(batch),
        }
    }
}

/// The sending end, to the leader of one term, with its connection and a copy of every batch that was not
/// acknowledged. Dropping it ends the link at once: what was not acknowledged may or may not reach the
/// leader.
pub struct ForwardLink {
    term: u64,
    stream: Stream<Vec<Proposal>, Refusal>,
}

impl ForwardLink {
    pub(super) fn open(peer: &rowlock_transport::Peer, term: u64) -> ForwardLink {
        ForwardLink { term, stream: peer.stream(judge) }
    }

    pub fn to(&self) -> NodeId {
        self.stream.to()
    }

    /// Queues a batch behind all earlier ones. Never waits; it leaves in [`ForwardLink::next`].
    pub fn send(&mut self, batch: Vec<Proposal>) -> Result<(), SendError> {
        assert!(!batch.is_empty(), "nothing is forwarded in vain");
        // Before it is encoded: a link is often full.
        if let Err(reason) = self.stream.room() {
            return Err(SendError::of(reason, batch));
        }
        let request = Request::Forward { term: self.term, batch };
        let body = request.encode();
        let Request::Forward { batch, .. } = request else { unreachable!("Invariant: made above") };
        self.stream.send(body, batch).map_err(|(reason, batch)| SendError::of(reason, batch))
    }

    /// Dials, writes and reads until there is something to tell; waits for ever after the last event, which
    /// gives back what was not acknowledged. Cancel safe.
    pub async fn next(&mut self) -> ForwardEvent {
        self.stream.next().await
    }
}

/// What the leader's node says of a batch.
fn judge(answer: &[u8]) -> Verdict<Refusal> {
    match codec::decode(answer, PEER_FRAME_MAX_BYTES) {
        Ok(Response::Forwarded) => Verdict::Taken,
        Ok(Response::Refused(refusal)) => Verdict::Refused(refusal),
        Ok(_) => Verdict::Garbled("not an answer to forwarded proposals".into()),
        Err(error) => Verdict::Garbled(error.to_string()),
    }
}
