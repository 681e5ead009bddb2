//! Connection to another node for one lane, driven by the task that owns it: the link dials, writes and reads
//! only in [`PeerLink::next`], so no other task sits between owner and socket.
//!
//! The owner leaves a tag with each request, and the link returns the tag with the answer. A link ends with
//! its connection and never reconnects: the link then returns all tags without an answer, and the owner opens
//! another link.
//!
//! Invariant: requests leave in the order of submission, and none is sent twice.
//!
//! Dialing another node: connect, handshake, and a growing pause after failures.

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rowlock_env::backoff::Backoff;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::time::{self, Sleep};
use rowlock_metrics::memory::Tally;
use rowlock_proto::NodeId;

use super::error::PeerError;
use super::frame::RequestId;
use super::handshake::{self, HandshakeRefusal, Hello, Identity, Lane};
use super::security::Security;
use super::service::{KnownIncarnations, NotRecorded};
use super::wire::{self, Inbox, Outbox, WireError};
use crate::limits::{DIAL_PAUSES, DIAL_REFUSED_PAUSES, PEER_HANDSHAKE_TIMEOUT, PEER_HELLO_MAX_BYTES};

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

/// Address of a node; the membership changes it, and the next attempt to dial uses the new value.
pub(super) type Address = Arc<Mutex<Addresses>>;

/// Current and previous address of a node. `cluster.toml` and the membership may differ while a node moves,
/// and either may be newer: the log cannot carry the new address to a node that needs this connection to take
/// part. Trying both is safe, since the handshake verifies the node's identity.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    current: String,
    previous: Option<String>,
}

impl Addresses {
    /// Replaces the current address; a different earlier one becomes the previous address.
    pub(super) fn set(&mut self, address: &str) {
        if self.current != address {
            let previous = std::mem::replace(&mut self.current, address.to_owned());
            self.previous = (!previous.is_empty()).then_some(previous);
        }
    }

    /// Returns the address to try after `failures` failures in a row, and whether that address is the current
    /// one.
    fn after(&self, failures: u32) -> (String, bool) {
        match &self.previous {
            Some(previous) if failures % 2 == 1 => (previous.clone(), false),
            _ => (self.current.clone(), true),
        }
    }
}

/// Settings shared by all connections that this node dials.
#[derive(Clone)]
pub(super) struct DialContext {
    pub(super) us: Arc<Identity>,
    pub(super) known: Arc<dyn KnownIncarnations>,
    pub(super) security: Security,
    pub(super) tally: Tally,
}

/// Opens one lane's connections to one node.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) context: DialContext,
    pub(super) to: NodeId,
    /// The address is a guess: a failed attempt is not logged.
    pub(super) is_guess: bool,
    pub(super) lane: Lane,
    pub(super) address: Address,
    /// Pauses, shared by all dialers of this lane.
    pub(super) backoff: Arc<Mutex<Backoff>>,
}

impl Dialer {
    /// Returns a connection that has passed the handshake. First waits for the pause after earlier failures.
    /// Cancel safe: dropping the future ends the attempt.
    pub(super) async fn dial(&self) -> Result<(Inbox, Outbox), PeerError> {
        let (not_before, failures) = {
            let backoff = self.backoff.lock();
            (backoff.not_before(), backoff.failures())
        };
        if let Some(not_before) = not_before {
            time::sleep_until(not_before).await;
        }
        let (address, is_newest) = self.address.lock().after(failures);
        let dialed = self.attempt(&address).await;
        let mut backoff = self.backoff.lock();
        match &dialed {
            Ok(_) => {
                // Every lane sees the recovery; only the heartbeat lane logs.
                if backoff.succeeded() > 0 && self.lane == Lane::Heartbeat {
                    tracing::info!(node = %self.to, address, "node reachable again");
                }
            }
            Err(error) => {
                let refused = is_newest && matches!(error, PeerError::Refused { .. });
                backoff.failed(time::now(), if refused { &DIAL_REFUSED_PAUSES } else { &DIAL_PAUSES });
                let is_first = backoff.failures() == 1;
                if is_first && !self.is_guess && (self.lane == Lane::Heartbeat || refused) {
                    tracing::warn!(node = %self.to, address, %error, "node not reachable: still trying");
                }
            }
        }
        dialed
    }

    async fn attempt(&self, address: &str) -> Result<(Inbox, Outbox), PeerError> {
        let unreachable = |reason: String| PeerError::Unreachable { node: self.to, reason };
        let DialContext { us, known, security, tally } = &self.context;
        let stream = security.connect(address, us, self.to).await.map_err(unreachable)?;
        let (mut inbox, mut outbox) = wire::split(stream, PEER_HELLO_MAX_BYTES, tally);
        let hello = Hello {
            from: (**us).clone(),
            to: self.to,
            lane: self.lane,
            incarnation: known.incarnation(),
            cluster: known.cluster(),
            versions: known.versions(),
        };
        outbox.push(RequestId::NONE, &handshake::encode_hello(&hello));
        let answer = async {
            outbox.drain().await?;
            inbox.next().await
        };
        let verdict = match time::timeout(PEER_HANDSHAKE_TIMEOUT, answer).await {
            Err(_) => return Err(unreachable(format!("no handshake within {PEER_HANDSHAKE_TIMEOUT:?}"))),
            Ok(Err(WireError::Frame(_))) => Err(HandshakeRefusal::NotRowlock),
            Ok(Err(error)) => return Err(unreachable(format!("in the handshake: {error}"))),
            Ok(Ok(frame)) => handshake::check_verdict(&frame.body),
        };
        let refused = |refusal| PeerError::Refused { node: self.to, refusal };
        let theirs = verdict.map_err(refused)?;
        handshake::agree(&theirs.versions, &hello.versions).map_err(refused)?;
        known.record(self.to, theirs.incarnation).await.map_err(|cause| match cause {
            NotRecorded::OtherFolder => refused(HandshakeRefusal::OtherFolder { node: self.to }),
            NotRecorded::TooMany | NotRecorded::Disk(_) => unreachable(cause.to_string()),
        })?;
        known.heard(self.to, theirs.versions);
        inbox.set_body_max_bytes(self.lane.frame_max_bytes());
        Ok((inbox, outbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_dial_tries_the_previous_address() {
        let mut addresses = Addresses::default();
        addresses.set("a:1");
        addresses.set("a:1");
        assert_eq!(addresses.after(1), ("a:1".to_owned(), true), "there is no other address");
        addresses.set("b:1");
        assert_eq!(addresses.after(0), ("b:1".to_owned(), true));
        assert_eq!(addresses.after(1), ("a:1".to_owned(), false));
        assert_eq!(addresses.after(2), ("b:1".to_owned(), true));
    }
}
