//! An ordered stream of batches to another node over a connection of its own, driven by the task that owns
//! it.
//!
//! The stream is queue, window and copies in one: it keeps what its owner wants back of a batch until the
//! other side has acknowledged it, and gives back the rest when it ends. Batches are taken by the other side
//! in the order in which they were sent. A stream ends with its first refusal or with its connection, and is
//! not mended: its owner decides what to do with what comes back.
//!
//! Invariant: nothing is ever sent twice by a stream, and after a refused batch no later one is accepted by
//! the listener.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_env::time::{self, Sleep};
use rowlock_proto::NodeId;
use rowlock_types::limits::{PEER_FORWARD_WINDOW_BATCHES, PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES};
use rowlock_types::memory::Share;

use super::dial::Dialer;
use super::error::PeerError;
use super::frame::RequestId;
use super::wire::{self, Inbox, Outbox, WireError};

/// What an answer says of a batch, as whoever opened the stream reads it.
pub enum Verdict<R> {
    /// The other side has it.
    Taken,
    /// It was not taken, for this reason, nor will any later one be.
    Refused(R),
    /// No answer to a batch.
    Garbled(String),
}

pub type Judge<R> = fn(&[u8]) -> Verdict<R>;

/// What became of the batches of a stream. `Refused` and `Lost` are the last event of it, and give back the
/// copy of every batch that was not acknowledged, in the order in which they were sent.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamEvent<T, R> {
    /// The other side has taken more batches: there is room again.
    Acked,
    /// None of these was taken, nor will be: all may be sent elsewhere.
    Refused {
        /// All that was not acknowledged.
        untaken: Vec<T>,
        refusal: R,
    },
    /// There is no connection any more, or never was.
    Lost {
        /// Left, and not acknowledged: it is not known whether the other side has them.
        unknown: Vec<T>,
        /// Never left: these may be sent elsewhere. They come after those of `unknown`.
        unsent: Vec<T>,
        error: PeerError,
    },
}

/// A batch was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// Too much is unacknowledged: try again after the next `Acked`.
    Full,
    /// The stream has ended, as its last event says.
    Ended,
    /// It would not fit a frame; it never will.
    TooLarge,
}

/// The sending end, with its connection. Nothing leaves and nothing is heard but in [`Stream::next`].
/// Dropping it ends the stream at once: what was not acknowledged may or may not reach the other side.
pub struct Stream<T, R> {
    to: NodeId,
    judge: Judge<R>,
    link: Link,
    /// Not acknowledged: first those that are with the connection, then those that wait for it.
    window: VecDeque<Batch<T>>,
    /// How many of them are with the connection.
    sent: usize,
    /// Of all of them.
    bytes: usize,
    /// How many were acknowledged.
    acked: u64,
    /// Of those that wait for the connection.
    held: Share,
}

struct Batch<T> {
    /// Empty once the connection has it.
    body: Vec<u8>,
    bytes: usize,
    copy: T,
}

enum Link {
    Dialing(BoxFuture<'static, Result<(Inbox, Outbox), PeerError>>),
    Connected(Box<Connected>),
    Ended,
}

struct Connected {
    inbox: Inbox,
    outbox: Outbox,
    tick: Pin<Box<Sleep>>,
}

/// What came of waiting for the connection once.
enum Moved {
    /// Bytes have left, or the time for a look at the silence was there.
    On,
    /// Bytes came in.
    Heard,
}

enum End<R> {
    Refused(R),
    Failed(PeerError),
}

/// Opens a stream, which dials first.
pub(super) fn open<T, R>(dialer: Dialer, judge: Judge<R>) -> Stream<T, R> {
    let (to, held) = (dialer.to, dialer.tally.share());
    let link = Link::Dialing(async move { dialer.dial().await }.boxed());
    Stream { to, judge, link, window: VecDeque::new(), sent: 0, bytes: 0, acked: 0, held }
}

impl<T, R> Stream<T, R> {
    pub fn to(&self) -> NodeId {
        self.to
    }

    /// Whether another batch would be accepted, as far as its size does not matter.
    pub fn room(&self) -> Result<(), NotSent> {
        match self.link {
            Link::Ended => Err(NotSent::Ended),
            _ if self.window.len() >= PEER_FORWARD_WINDOW_BATCHES => Err(NotSent::Full),
            _ if self.bytes >= PEER_FORWARD_WINDOW_BYTES => Err(NotSent::Full),
            _ => Ok(()),
        }
    }

    /// Queues a batch behind all earlier ones, and keeps `copy` until it is acknowledged. Never waits. What
    /// is not accepted comes back.
    pub fn send(&mut self, body: Vec<u8>, copy: T) -> Result<(), (NotSent, T)> {
        if let Err(reason) = self.room() {
            return Err((reason, copy));
        }
        let bytes = body.len();
        assert!(bytes > 0, "a batch says something");
        if bytes > PEER_FRAME_MAX_BYTES {
            return Err((NotSent::TooLarge, copy));
        }
        self.window.push_back(Batch { body, bytes, copy });
        self.bytes += bytes;
        self.count_held();
        Ok(())
    }

    /// Dials, writes and reads until there is something to tell; waits for ever after the last event. Cancel
    /// safe: what has begun goes on with the next call.
    pub async fn next(&mut self) -> StreamEvent<T, R> {
        match self.drive().await {
            Ok(()) => StreamEvent::Acked,
            Err(end) => self.ended(end),
        }
    }

    /// Until batches are acknowledged.
    async fn drive(&mut self) -> Result<(), End<R>> {
        loop {
            match &mut self.link {
                Link::Ended => return pending().await,
                Link::Dialing(dialing) => {
                    let (inbox, outbox) = dialing.await.map_err(End::Failed)?;
                    let tick = Box::pin(time::sleep_about(wire::TICK));
                    self.link = Link::Connected(Box::new(Connected { inbox, outbox, tick }));
                }
                Link::Connected(connected) => {
                    push(connected, &mut self.window, &mut self.sent, self.acked);
                    self.count_held();
                    if self.moved().await? && self.receive()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Waits for the connection once. Says whether bytes came in.
    async fn moved(&mut self) -> Result<bool, End<R>> {
        let Link::Connected(connected) = &mut self.link else { return pending().await };
        match connected.moved().await {
            Ok(moved) => Ok(matches!(moved, Moved::Heard)),
            Err(error) => Err(End::Failed(PeerError::Lost { node: self.to, reason: error.to_string() })),
        }
    }

    /// Takes all answers that are there. Says whether they acknowledge anything.
    fn receive(&mut self) -> Result<bool, End<R>> {
        let before = self.acked;
        let Link::Connected(connected) = &mut self.link else { return Ok(false) };
        let garbled = |reason| Err(End::Failed(PeerError::Garbled { node: self.to, reason }));
        loop {
            let frame = match connected.inbox.take() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(self.acked > before),
                Err(error) => return garbled(error.to_string()),
            };
            if frame.id == RequestId::NONE {
                continue; // answers a ping
            }
            match (self.judge)(&frame.body) {
                Verdict::Garbled(reason) => return garbled(reason),
                _ if frame.id.0 != self.acked + 1 || self.sent == 0 => {
                    return garbled("answers out of order".into());
                }
                Verdict::Taken => {
                    let batch = self.window.pop_front().expect("Invariant: what was sent is in the window");
                    assert!(batch.body.is_empty(), "only what has left is acknowledged");
                    self.bytes -= batch.bytes;
                    self.sent -= 1;
                    self.acked += 1;
                }
                Verdict::Refused(refusal) => return Err(End::Refused(refusal)),
            }
        }
    }

    /// The connection is closed here, before its owner hears of it.
    fn ended(&mut self, end: End<R>) -> StreamEvent<T, R> {
        assert!(self.sent <= self.window.len(), "what is with the connection is in the window");
        self.link = Link::Ended;
        let sent = std::mem::take(&mut self.sent);
        let mut copies = std::mem::take(&mut self.window).into_iter().map(|batch| batch.copy);
        let unknown: Vec<T> = copies.by_ref().take(sent).collect();
        let unsent: Vec<T> = copies.collect();
        self.bytes = 0;
        self.held.hold(0);
        // While a node is away, its link is tried and ends several times a second.
        tracing::debug!(
            node = %self.to,
            acked = self.acked,
            unacknowledged = unknown.len(),
            unsent = unsent.len(),
            "link for forwarded proposals ended"
        );
        match end {
            End::Refused(refusal) => {
                StreamEvent::Refused { untaken: unknown.into_iter().chain(unsent).collect(), refusal }
            }
            End::Failed(error) => StreamEvent::Lost { unknown, unsent, error },
        }
    }

    fn count_held(&mut self) {
        let waiting = self.window.range(self.sent..);
        self.held.hold(waiting.map(|batch| batch.body.len()).sum());
    }
}

/// Gives the connection as much as it takes.
fn push<T>(to: &mut Connected, window: &mut VecDeque<Batch<T>>, sent: &mut usize, acked: u64) {
    while to.outbox.has_room()
        && let Some(batch) = window.get_mut(*sent)
    {
        *sent += 1;
        let body = std::mem::take(&mut batch.body);
        assert!(!body.is_empty(), "a batch is sent once");
        to.outbox.push(RequestId(acked + *sent as u64), &body);
    }
}

impl Connected {
    /// Writes or reads once, or looks whether the other side has become silent. Cancel safe.
    async fn moved(&mut self) -> Result<Moved, WireError> {
        let Connected { inbox, outbox, tick } = self;
        tokio::select! {
            biased;
            sent = outbox.drain_some(), if !outbox.is_empty() => sent.map(|()| Moved::On),
            filled = inbox.fill() => filled.map(|()| Moved::Heard),
            () = tick.as_mut() => {
                wire::check_silence(inbox, outbox)?;
                tick.set(time::sleep_about(wire::TICK));
                Ok(Moved::On)
            }
        }
    }
}
