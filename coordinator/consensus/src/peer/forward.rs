//! Forwarded proposals: an ordered stream of batches to the leader over a connection of its own.
//!
//! Batches reach the leader's proposer in the order in which they were sent. A link ends with its first
//! refusal or with its connection, and is not mended: whoever owns it decides what to do with the batches
//! that were not acknowledged.

use rowlock_proto::NodeId;
use rowlock_state::command::Proposal;
use rowlock_transport::{NotSent, Stream, StreamEvent, Verdict};
use rowlock_types::codec;
use rowlock_types::limits::PEER_FRAME_MAX_BYTES;
use tokio::sync::mpsc;

use super::message::{Refusal, Request, Response};

pub use rowlock_transport::BatchSeq;

/// What became of the batches of a link. Acknowledged ones are with the leader's proposer; their outcome
/// comes with the log.
pub type ForwardEvent = StreamEvent<Refusal>;

/// A batch was not accepted; it comes back to the caller.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Too much is unacknowledged: try again after the next `Acked`.
    #[error("too many forwarded batches wait for the leader")]
    Full(Vec<Proposal>),
    /// The link has ended; its last event says how, or the node stops.
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

/// The sending end, to the leader of one term. Dropping it ends the link at once: what was not acknowledged
/// may or may not reach the leader.
pub struct ForwardLink {
    term: u64,
    stream: Stream,
}

impl ForwardLink {
    pub(super) fn open(
        peer: &rowlock_transport::Peer,
        term: u64,
        events: mpsc::Sender<ForwardEvent>,
    ) -> ForwardLink {
        ForwardLink { term, stream: peer.stream(judge, events) }
    }

    /// To which node.
    pub fn to(&self) -> NodeId {
        self.stream.to()
    }

    /// Sends a batch behind all earlier ones. Never waits. The batch comes back with its number, so that it
    /// can go elsewhere if this link turns out not to have carried it.
    pub fn send(&mut self, batch: Vec<Proposal>) -> Result<(BatchSeq, Vec<Proposal>), SendError> {
        // Before it is encoded: a link is often full.
        if let Err(reason) = self.stream.room() {
            return Err(SendError::of(reason, batch));
        }
        let request = Request::Forward { term: self.term, batch };
        let body = request.encode();
        let Request::Forward { batch, .. } = request else { unreachable!("Invariant: made above") };
        match self.stream.send(body) {
            Ok(number) => Ok((number, batch)),
            Err(reason) => Err(SendError::of(reason, batch)),
        }
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
