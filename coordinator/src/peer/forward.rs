//! Forwarded proposals: an ordered stream of batches to the leader over a connection of its own.
//!
//! Batches reach the leader's proposer in the order in which they were sent. A link ends with its first
//! refusal or with its connection, and is not mended: whoever owns it decides what to do with the batches
//! that were not acknowledged.
//!
//! Invariant: nothing is ever sent twice by a link, and after a refused batch no later one is accepted by the
//! listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::command::Proposal;
use rowlock_types::limits::{PEER_FORWARD_WINDOW_BATCHES, PEER_FORWARD_WINDOW_BYTES};
use rowlock_types::memory::{Share, Tally};
use tokio::sync::mpsc;

use super::dial::Dialer;
use super::error::PeerError;
use super::frame::RequestId;
use super::message::{Refusal, Request, Response};
use super::pool;
use super::wire::{self, Inbox, Outbox, WireError};

/// The number of a batch on its link, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchSeq(pub u64);

/// What became of the batches of a link. `Refused` and `Lost` are the last event of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardEvent {
    /// The leader's proposer has all batches up to this one. Their outcome comes with the log.
    Acked {
        /// The last of them.
        through: BatchSeq,
    },
    /// No batch from this one on was taken, nor will be: all may be sent elsewhere, in order.
    Refused {
        /// The first of them.
        from: BatchSeq,
        /// Why.
        refusal: Refusal,
    },
    /// There is no connection any more, or never was.
    Lost {
        /// The first batch that was not acknowledged. From here to before `unsent`, it is not known whether
        /// the leader has them.
        unknown: BatchSeq,
        /// The first batch that never left: it and all later ones may be sent elsewhere.
        unsent: BatchSeq,
        /// How it came.
        error: PeerError,
    },
}

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

/// The sending end, to the leader of one term. Dropping it ends the link at once: what was not acknowledged
/// may or may not reach the leader.
pub struct ForwardLink {
    to: NodeId,
    term: u64,
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

impl ForwardLink {
    /// To which node.
    pub fn to(&self) -> NodeId {
        self.to
    }

    /// Sends a batch behind all earlier ones. Never waits. The batch comes back with its number, so that it
    /// can go elsewhere if this link turns out not to have carried it.
    pub fn send(&mut self, batch: Vec<Proposal>) -> Result<(BatchSeq, Vec<Proposal>), SendError> {
        let window = &self.window;
        if window.batches.load(Ordering::Acquire) >= PEER_FORWARD_WINDOW_BATCHES
            || window.bytes.load(Ordering::Acquire) >= PEER_FORWARD_WINDOW_BYTES
        {
            return if self.queue.is_closed() {
                Err(SendError::Ended(batch))
            } else {
                Err(SendError::Full(batch))
            };
        }
        let request = Request::Forward { term: self.term, batch };
        let encoded = pool::encode(self.to, &request);
        let Request::Forward { batch, .. } = request else { unreachable!("Invariant: made above") };
        let Ok(body) = encoded else { return Err(SendError::TooLarge(batch)) };
        window.batches.fetch_add(1, Ordering::AcqRel);
        window.bytes.fetch_add(body.len(), Ordering::AcqRel);
        let mut held = self.tally.share();
        held.hold(body.len());
        match self.queue.try_send(Outgoing { body, _held: held }) {
            Ok(()) => {
                self.last.0 += 1;
                Ok((self.last, batch))
            }
            // Never full: it holds a whole window.
            Err(_) => Err(SendError::Ended(batch)),
        }
    }
}

/// Opens a link to the leader of `term`; its task dials first.
pub(super) fn open(
    dialer: Dialer,
    term: u64,
    events: mpsc::Sender<ForwardEvent>,
    tasks: &TaskGroup,
) -> ForwardLink {
    let (queue, outgoing) = mpsc::channel(PEER_FORWARD_WINDOW_BATCHES);
    let window = Arc::new(Window::default());
    let (tally, last) = (dialer.tally.clone(), BatchSeq(0));
    let link = ForwardLink { to: dialer.to, term, queue, window: window.clone(), tally, last };
    tasks.spawn("peer-forward", run(dialer, outgoing, window, events, tasks.shutdown().clone()));
    link
}

async fn run(
    dialer: Dialer,
    mut outgoing: mpsc::Receiver<Outgoing>,
    window: Arc<Window>,
    events: mpsc::Sender<ForwardEvent>,
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
            End::Refused(refusal) => Some(ForwardEvent::Refused { from: progress.acked.next(), refusal }),
            End::Failed(error) => Some(ForwardEvent::Lost {
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
    // From here on `send` says that the link has ended, so whoever sees the last event has sent all that it
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

enum End {
    Dropped,
    Refused(Refusal),
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

struct Running<'a> {
    node: NodeId,
    inbox: Inbox,
    outbox: Outbox,
    progress: &'a mut Progress,
    window: &'a Window,
    events: &'a mpsc::Sender<ForwardEvent>,
}

impl Running<'_> {
    async fn run(mut self, outgoing: &mut mpsc::Receiver<Outgoing>) -> End {
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
    async fn receive(&mut self) -> Result<(), End> {
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
            match pool::decode(self.node, &frame.body) {
                Ok(_) if !self.is_next_answer(frame.id) => {
                    break Some(self.garbled("answers out of order".into()));
                }
                Ok(Response::Forwarded) => self.acknowledge(),
                Ok(Response::Refused(refusal)) => break Some(End::Refused(refusal)),
                Ok(_) => break Some(self.garbled("not an answer to forwarded proposals".into())),
                Err(error) => break Some(End::Failed(error)),
            }
        };
        if self.progress.acked > before {
            // The owner is gone when this fails; the closed queue ends the link.
            let _ = self.events.send(ForwardEvent::Acked { through: self.progress.acked }).await;
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

    fn garbled(&self, reason: String) -> End {
        End::Failed(PeerError::Garbled { node: self.node, reason })
    }
}
