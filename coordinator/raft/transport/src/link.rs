//! Connection to another node for one lane, driven by the task that owns it: the link dials, writes and reads
//! only in [`PeerLink::next`], so no other task sits between owner and socket.
//!
//! The owner leaves a tag with each request, and the link returns the tag with the answer. A link ends with
//! its connection and never reconnects: the link then returns all tags without an answer, and the owner opens
//! another link.
//!
//! Invariant: requests leave in the order of submission, and none is sent twice.

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::time::{self, Sleep};
use rowlock_proto::NodeId;

use super::dial::Dialer;
use super::error::PeerError;
use super::frame::RequestId;
use super::handshake::Lane;
use super::wire::{self, Inbox, Outbox, WireError};

#[derive(Debug, PartialEq, Eq)]
pub enum LinkEvent<T> {
    /// There may be room: the connection was opened, has written, or half a second has passed.
    Moved,
    /// A request was answered. On lanes whose order matters ([`Lane::keeps_order`]) all earlier requests are
    /// answered.
    Answered { tag: T, answer: Bytes },
    /// The last event: the connection ended, or dialing failed.
    Ended {
        /// Tags of all requests without an answer, in order. The other node may have carried the requests
        /// out.
        unanswered: Vec<T>,
        error: PeerError,
    },
}

/// Dialing end of a connection. Dropping a link closes its connection: requests without an answer may or may
/// not be carried out.
pub struct PeerLink<T> {
    to: NodeId,
    lane: Lane,
    state: LinkState,
    /// Requests whose answers the owner has not received.
    requests: BTreeMap<RequestId, Unanswered<T>>,
    bytes: usize,
    /// Most requests without an answer, and the most bytes in them.
    window: (usize, usize),
    last_id: RequestId,
}

struct Unanswered<T> {
    bytes: usize,
    tag: T,
    /// Answer that arrived before the answer to an earlier request.
    early: Option<Bytes>,
}

enum LinkState {
    Dialing(BoxFuture<'static, Result<(Inbox, Outbox), PeerError>>),
    Connected(Box<Connected>),
    Ended,
}

struct Connected {
    inbox: Inbox,
    outbox: Outbox,
    tick: Pin<Box<Sleep>>,
}

impl<T> PeerLink<T> {
    /// Creates a link; the first `next` dials.
    pub(super) fn open(dialer: Dialer) -> PeerLink<T> {
        let (to, lane) = (dialer.to, dialer.lane);
        let state = LinkState::Dialing(async move { dialer.dial().await }.boxed());
        let (requests, bytes) = lane.window();
        let is_narrow = lane == Lane::Proposals && choice::taken(Choice::ForwardWindowFull, 1);
        let window = (if is_narrow { 1 } else { requests }, bytes);
        PeerLink { to, lane, state, requests: BTreeMap::new(), bytes: 0, window, last_id: RequestId::NONE }
    }

    /// Returns whether a request may be sent now. If not, there may be room after the next event.
    pub fn has_room(&self) -> bool {
        let (requests, bytes) = self.window;
        let LinkState::Connected(connected) = &self.state else { return false };
        decides!(
            "link-has-room",
            connected.outbox.has_room() && self.requests.len() < requests && self.bytes < bytes
        )
    }

    /// Queues a request behind all earlier ones; `next` writes the request. The caller checks `has_room`
    /// first.
    ///
    /// Errors: the request exceeds the frame size.
    pub fn send(&mut self, body: &[u8], tag: T) -> Result<(), PeerError> {
        assert!(self.has_room(), "a request is sent only where there is room");
        if body.len() > self.lane.frame_max_bytes() {
            return Err(PeerError::TooLarge { node: self.to, len: body.len() });
        }
        let LinkState::Connected(connected) = &mut self.state else { unreachable!("Invariant: it has room") };
        self.last_id.0 += 1;
        connected.outbox.push(self.last_id, body);
        self.bytes += body.len();
        self.requests.insert(self.last_id, Unanswered { bytes: body.len(), tag, early: None });
        Ok(())
    }

    /// Returns the tags of requests without an answer, in order.
    pub fn unanswered(&self) -> impl Iterator<Item = &T> {
        self.requests.values().map(|request| &request.tag)
    }

    /// Keeps only the tags that `keep` selects. The link discards the answers to the removed requests, which
    /// may still be carried out.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.requests.retain(|_, request| keep(&request.tag));
        self.bytes = self.requests.values().map(|request| request.bytes).sum();
    }

    /// Closes the connection. Returns the tags of all requests without an answer, in order.
    pub fn close(&mut self) -> Vec<T> {
        self.state = LinkState::Ended;
        self.bytes = 0;
        std::mem::take(&mut self.requests).into_values().map(|request| request.tag).collect()
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.state, LinkState::Ended)
    }

    /// Dials, writes and reads until the next event; waits for ever after the last event. Cancel safe: a
    /// later call continues the work in progress.
    pub async fn next(&mut self) -> LinkEvent<T> {
        match self.drive().await {
            Ok(event) => event,
            Err(error) => {
                let unanswered = self.close();
                let count = unanswered.len();
                // Happens several times a second while a node is down.
                tracing::debug!(node = %self.to, lane = %self.lane, %error, unanswered = count, "link ended");
                LinkEvent::Ended { unanswered, error }
            }
        }
    }

    async fn drive(&mut self) -> Result<LinkEvent<T>, PeerError> {
        if let LinkState::Dialing(dialing) = &mut self.state {
            let (inbox, outbox) = dialing.await?;
            let tick = Box::pin(time::sleep_about(wire::TICK));
            self.state = LinkState::Connected(Box::new(Connected { inbox, outbox, tick }));
            return Ok(LinkEvent::Moved);
        }
        let lost = |error: WireError| PeerError::Lost { node: self.to, reason: error.to_string() };
        loop {
            let LinkState::Connected(connected) = &mut self.state else { return pending().await };
            match answered(&mut connected.inbox, &mut self.requests, self.lane.keeps_order()) {
                Ok(Some((request, answer))) => {
                    self.bytes -= request.bytes;
                    return Ok(LinkEvent::Answered { tag: request.tag, answer });
                }
                Ok(None) => {}
                Err(error) => return Err(lost(error)),
            }
            if connected.moved().await.map_err(lost)? {
                return Ok(LinkEvent::Moved);
            }
        }
    }
}

/// Returns the next request whose answer has arrived.
fn answered<T>(
    inbox: &mut Inbox,
    requests: &mut BTreeMap<RequestId, Unanswered<T>>,
    in_order: bool,
) -> Result<Option<(Unanswered<T>, Bytes)>, WireError> {
    loop {
        if in_order
            && let Some(mut first) = requests.first_entry()
            && let Some(answer) = first.get_mut().early.take()
        {
            return Ok(Some((first.remove(), answer)));
        }
        let Some(frame) = inbox.take()? else { return Ok(None) };
        // Pings have no entry, nor have requests that `retain` removed.
        if in_order && let Some(request) = requests.get_mut(&frame.id) {
            request.early = Some(frame.body);
        } else if let Some(request) = requests.remove(&frame.id) {
            return Ok(Some((request, frame.body)));
        }
    }
}

impl Connected {
    /// Writes or reads once, or checks for a silent peer. Returns whether there may be new room. Cancel safe.
    async fn moved(&mut self) -> Result<bool, WireError> {
        let Connected { inbox, outbox, tick } = self;
        let was_full = !outbox.has_room();
        tokio::select! {
            biased;
            sent = outbox.drain_some(), if !outbox.is_empty() => sent.map(|()| was_full),
            filled = inbox.fill() => filled.map(|()| false),
            () = tick.as_mut() => {
                wire::check_silence(inbox, outbox)?;
                tick.set(time::sleep_about(wire::TICK));
                Ok(true)
            }
        }
    }
}
