//! An ordered stream of batches to another node over a connection of its own.
//!
//! Batches are taken by the other side in the order in which they were sent. A stream ends with its first
//! refusal or with its connection, and is not mended: whoever owns it decides what to do with the batches
//! that were not acknowledged.
//!
//! Invariant: nothing is ever sent twice by a stream, and after a refused batch no later one is accepted by
//! the listener.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_types::limits::{PEER_FORWARD_WINDOW_BATCHES, PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES};
use rowlock_types::memory::{Share, Tally};
use tokio::sync::mpsc;

use super::dial::Dialer;
use super::error::PeerError;
use super::frame::RequestId;
use super::wire::{self, Inbox, Outbox, WireError};

/// The number of a batch on its stream, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchSeq(pub u64);

/// What an answer says of a batch, as whoever opened the stream reads it.
pub enum Verdict<R> {
    /// The other side has it.
    Taken,
    /// It was not taken, for this reason, nor will any later one be.
    Refused(R),
    /// No answer to a batch.
    Garbled(String),
}

/// Reads an answer.
pub type Judge<R> = fn(&[u8]) -> Verdict<R>;

/// What became of the batches of a stream. `Refused` and `Lost` are the last event of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent<R> {
    /// The other side has all batches up to this one.
    Acked {
        /// The last of them.
        through: BatchSeq,
    },
    /// No batch from this one on was taken, nor will be: all may be sent elsewhere, in order.
    Refused {
        /// The first of them.
        from: BatchSeq,
        /// Why.
        refusal: R,
    },
    /// There is no connection any more, or never was.
    Lost {
        /// The first batch that was not acknowledged. From here to before `unsent`, it is not known whether
        /// the other side has them.
        unknown: BatchSeq,
        /// The first batch that never left: it and all later ones may be sent elsewhere.
        unsent: BatchSeq,
        /// How it came.
        error: PeerError,
    },
}

/// A batch was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// Too much is unacknowledged: try again after the next `Acked`.
    Full,
    /// The stream has ended; its last event says how, or the node stops.
    Ended,
    /// It would not fit a frame; it never will.
    TooLarge,
}

/// The sending end. Dropping it ends the stream at once: what was not acknowledged may or may not reach the
/// other side.
pub struct Stream {
    to: NodeId,
    queue: mpsc::Sender<Outgoing>,
    window: Arc<Window>,
    tally: Tally,
    last: BatchSeq,
}

struct Outgoing {
    body: Vec<u8>,
    /// Of it, until it is with the connection.
    _held: Share,
}

/// What is sent and not acknowledged.
#[derive(Default)]
struct Window {
    batches: AtomicUsize,
    bytes: AtomicUsize,
}

impl Stream {
    /// To which node.
    pub fn to(&self) -> NodeId {
        self.to
    }

    /// Whether another batch would be accepted, as far as its size does not matter.
    pub fn room(&self) -> Result<(), NotSent> {
        let window = &self.window;
        if window.batches.load(Ordering::Acquire) < PEER_FORWARD_WINDOW_BATCHES
            && window.bytes.load(Ordering::Acquire) < PEER_FORWARD_WINDOW_BYTES
        {
            return Ok(());
        }
        Err(if self.queue.is_closed() { NotSent::Ended } else { NotSent::Full })
    }

    /// Sends a batch behind all earlier ones and gives its number. Never waits.
    pub fn send(&mut self, body: Vec<u8>) -> Result<BatchSeq, NotSent> {
        self.room()?;
        if body.len() > PEER_FRAME_MAX_BYTES {
            return Err(NotSent::TooLarge);
        }
        self.window.batches.fetch_add(1, Ordering::AcqRel);
        self.window.bytes.fetch_add(body.len(), Ordering::AcqRel);
        let mut held = self.tally.share();
        held.hold(body.len());
        // Never full: it holds a whole window.
        self.queue.try_send(Outgoing { body, _held: held }).map_err(|_| NotSent::Ended)?;
        self.last.0 += 1;
        Ok(self.last)
    }
}

/// Opens a stream; its task dials first.
pub(super) fn open<R: Debug + Send + 'static>(
    dialer: Dialer,
    judge: Judge<R>,
    events: mpsc::Sender<StreamEvent<R>>,
    tasks: &TaskGroup,
) -> Stream {
    let (queue, outgoing) = mpsc::channel(PEER_FORWARD_WINDOW_BATCHES);
    let window = Arc::new(Window::default());
    let (tally, last) = (dialer.tally.clone(), BatchSeq(0));
    let stream = Stream { to: dialer.to, queue, window: window.clone(), tally, last };
    let shutdown = tasks.shutdown().clone();
    tasks.spawn("peer-forward", run((dialer, judge), outgoing, window, events, shutdown));
    stream
}

async fn run<R: Debug>(
    (dialer, judge): (Dialer, Judge<R>),
    mut outgoing: mpsc::Receiver<Outgoing>,
    window: Arc<Window>,
    events: mpsc::Sender<StreamEvent<R>>,
    shutdown: Shutdown,
) {
    let node = dialer.to;
    let mut progress = Progress::default();
    let work = async {
        let end = match dialer.dial().await {
            Err(error) => End::Failed(error),
            Ok((inbox, outbox)) => {
                let running = Running {
                    node,
                    judge,
                    inbox,
                    outbox,
                    progress: &mut progress,
                    window: &window,
                    events: &events,
                };
                running.run(&mut outgoing).await
            }
        };
        match end {
            End::Dropped => None,
            End::Refused(refusal) => Some(StreamEvent::Refused { from: progress.acked.next(), refusal }),
            End::Failed(error) => Some(StreamEvent::Lost {
                unknown: progress.acked.next(),
                unsent: progress.sent.next(),
                error,
            }),
        }
    };
    let last = tokio::select! {
        biased;
        () = shutdown.wait() => None,
        last = work => last,
    };
    // From here on `send` says that the stream has ended, so whoever sees the last event has sent all that it
    // covers.
    outgoing.close();
    if let Some(last) = last {
        tracing::info!(%node, ?last, "link for forwarded proposals ended");
        tokio::select! {
            biased;
            () = shutdown.wait() => {}
            _ = events.send(last) => {} // nobody listens: the owner is gone
        }
    }
}

enum End<R> {
    Dropped,
    Refused(R),
    Failed(PeerError),
}

#[derive(Default)]
struct Progress {
    sent: BatchSeq,
    acked: BatchSeq,
    /// Sizes of what is sent and not acknowledged.
    sizes: std::collections::VecDeque<usize>,
}

impl BatchSeq {
    fn next(self) -> BatchSeq {
        BatchSeq(self.0 + 1)
    }
}

struct Running<'a, R> {
    node: NodeId,
    judge: Judge<R>,
    inbox: Inbox,
    outbox: Outbox,
    progress: &'a mut Progress,
    window: &'a Window,
    events: &'a mpsc::Sender<StreamEvent<R>>,
}

impl<R> Running<'_, R> {
    async fn run(mut self, outgoing: &mut mpsc::Receiver<Outgoing>) -> End<R> {
        let lost = |node, error: WireError| End::Failed(PeerError::Lost { node, reason: error.to_string() });
        let mut tick = std::pin::pin!(time::sleep_about(wire::TICK));
        loop {
            tokio::select! {
                biased;
                sent = self.outbox.drain_some(), if !self.outbox.is_empty() => {
                    if let Err(error) = sent { return lost(self.node, error) }
                }
                filled = self.inbox.fill() => {
                    if let Err(error) = filled { return lost(self.node, error) }
                    if let Err(end) = self.receive().await { return end }
                }
                batch = outgoing.recv(), if self.outbox.has_room() => {
                    let Some(batch) = batch else { return End::Dropped };
                    self.push(batch);
                    while self.outbox.has_room() && let Ok(batch) = outgoing.try_recv() {
                        self.push(batch);
                    }
                }
                () = tick.as_mut() => {
                    if let Err(error) = wire::check_silence(&mut self.inbox, &mut self.outbox) { return lost(self.node, error) }
                    tick.set(time::sleep_about(wire::TICK));
                }
            }
        }
    }

    fn push(&mut self, batch: Outgoing) {
        self.progress.sent = self.progress.sent.next();
        self.progress.sizes.push_back(batch.body.len());
        self.outbox.push(RequestId(self.progress.sent.0), &batch.body);
    }

    /// Takes all acknowledgements that are there and tells of them at once.
    async fn receive(&mut self) -> Result<(), End<R>> {
        let before = self.progress.acked;
        let end = loop {
            let frame = match self.inbox.take() {
                Ok(Some(frame)) => frame,
                Ok(None) => break None,
                Err(error) => break Some(self.garbled(error.to_string())),
            };
            if frame.id == RequestId::NONE {
                continue; // answers a ping
            }
            match (self.judge)(&frame.body) {
                Verdict::Garbled(reason) => break Some(self.garbled(reason)),
                _ if !self.is_next_answer(frame.id) => {
                    break Some(self.garbled("answers out of order".into()));
                }
                Verdict::Taken => self.acknowledge(),
                Verdict::Refused(refusal) => break Some(End::Refused(refusal)),
            }
        };
        if self.progress.acked > before {
            // The owner is gone when this fails; the closed queue ends the link.
            let _ = self.events.send(StreamEvent::Acked { through: self.progress.acked }).await;
        }
        end.map_or(Ok(()), Err)
    }

    fn is_next_answer(&self, id: RequestId) -> bool {
        id.0 == self.progress.acked.next().0 && id.0 <= self.progress.sent.0
    }

    fn acknowledge(&mut self) {
        self.progress.acked = self.progress.acked.next();
        let bytes = self.progress.sizes.pop_front().unwrap_or(0);
        self.window.batches.fetch_sub(1, Ordering::AcqRel);
        self.window.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn garbled(&self, reason: String) -> End<R> {
        End::Failed(PeerError::Garbled { node: self.node, reason })
    }
}
