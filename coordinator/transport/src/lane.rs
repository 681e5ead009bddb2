//! The dialing side of a lane: one task per node and lane that owns the connection, sends what callers queue
//! and hands out the answers. It decodes nothing and resends nothing.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant, Sleep};
use rowlock_types::limits::PEER_IN_FLIGHT_MAX;
use rowlock_types::memory::Share;
use tokio::sync::{mpsc, oneshot};

use super::dial::Dialer;
use super::error::PeerError;
use super::frame::RequestId;
use super::round_trips::RoundTrips;
use super::wire::{self, Inbox, Outbox, WireError};

/// A request on its way to the connection.
pub(super) struct Call {
    pub(super) body: Vec<u8>,
    pub(super) _held: Share,
    /// Who waits; gone when its deadline has passed.
    pub(super) reply: oneshot::Sender<Result<Bytes, PeerError>>,
    /// Shared with the caller.
    pub(super) stage: Arc<Stage>,
}

/// How a lane stands, for those who give up waiting and for those who ask.
#[derive(Clone, Debug, Default)]
pub(super) enum Health {
    /// Not connected, and nothing wrong about it.
    #[default]
    Idle,
    Connected,
    /// The last attempt to dial failed like this.
    Failing(PeerError),
}

/// Whether a request has left: decided once, by the lane that sends it or the caller whose patience ends, so
/// that "not sent" is never said of something that was.
#[derive(Default)]
pub(super) struct Stage(AtomicU8);

impl Stage {
    const QUEUED: u8 = 0;
    const SENT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// It leaves now, unless it was given up.
    pub(super) fn send(&self) -> bool {
        self.leave(Self::SENT)
    }

    /// It is not to leave any more; false if it has left.
    pub(super) fn give_up(&self) -> bool {
        self.leave(Self::GIVEN_UP)
    }

    pub(super) fn is_sent(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::SENT
    }

    fn leave(&self, to: u8) -> bool {
        self.0.compare_exchange(Self::QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A lane's task. Ends when `queue` has no sender left, or at shutdown.
pub(super) async fn run(
    dialer: Dialer,
    mut queue: mpsc::Receiver<Call>,
    health: Arc<Mutex<Health>>,
    trips: Option<Arc<RoundTrips>>,
    shutdown: Shutdown,
) {
    let work = async {
        while let Some(first) = queue.recv().await {
            match dialer.dial().await {
                Ok((inbox, outbox)) => {
                    *health.lock() = Health::Connected;
                    let ended = Connection::new(inbox, outbox, first, trips.clone()).run(&mut queue).await;
                    *health.lock() = Health::Idle;
                    let Some((error, waiting)) = ended else { return };
                    tracing::debug!(node = %dialer.to, lane = %dialer.lane, %error, "connection to node ended");
                    let lost = PeerError::Lost { node: dialer.to, reason: error.to_string() };
                    fail(waiting.into_values().map(|(reply, _)| reply), &lost);
                }
                Err(error) => {
                    *health.lock() = Health::Failing(error.clone());
                    fail([first.reply], &error);
                    while let Ok(call) = queue.try_recv() {
                        fail([call.reply], &error);
                    }
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.wait() => *health.lock() = Health::Idle,
        () = work => {}
    }
}

fn fail(replies: impl IntoIterator<Item = oneshot::Sender<Result<Bytes, PeerError>>>, error: &PeerError) {
    for reply in replies {
        let _ = reply.send(Err(error.clone())); // whoever gave up waiting does not need it
    }
}

/// Whom to answer, and when the request was sent.
type Waiting = BTreeMap<RequestId, (oneshot::Sender<Result<Bytes, PeerError>>, Instant)>;

struct Connection {
    inbox: Inbox,
    outbox: Outbox,
    waiting: Waiting,
    last_id: RequestId,
    trips: Option<Arc<RoundTrips>>,
}

impl Connection {
    fn new(inbox: Inbox, outbox: Outbox, first: Call, trips: Option<Arc<RoundTrips>>) -> Self {
        let (waiting, last_id) = (Waiting::new(), RequestId::NONE);
        let mut connection = Connection { inbox, outbox, waiting, last_id, trips };
        connection.send(first);
        connection
    }

    /// Gives the requests that wait when the connection breaks; nothing when nobody can call any more.
    async fn run(mut self, queue: &mut mpsc::Receiver<Call>) -> Option<(WireError, Waiting)> {
        let mut tick = std::pin::pin!(time::sleep_about(wire::TICK));
        loop {
            match self.step(queue, tick.as_mut()).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some((error, self.waiting)),
            }
        }
    }

    async fn step(
        &mut self,
        queue: &mut mpsc::Receiver<Call>,
        mut tick: Pin<&mut Sleep>,
    ) -> Result<bool, WireError> {
        let has_room = self.has_room();
        tokio::select! {
            biased;
            sent = self.outbox.drain_some(), if !self.outbox.is_empty() => sent?,
            filled = self.inbox.fill() => {
                filled?;
                self.receive()?;
            }
            call = queue.recv(), if has_room => {
                let Some(call) = call else { return Ok(false) };
                self.send(call);
                // All that is queued goes out in one write.
                while self.has_room() && let Ok(call) = queue.try_recv() {
                    self.send(call);
                }
            }
            () = tick.as_mut() => {
                wire::check_silence(&mut self.inbox, &mut self.outbox)?;
                self.waiting.retain(|_, (reply, _)| !reply.is_closed());
                tick.set(time::sleep_about(wire::TICK));
            }
        }
        Ok(true)
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < PEER_IN_FLIGHT_MAX && self.outbox.has_room()
    }

    fn send(&mut self, call: Call) {
        if call.reply.is_closed() || !call.stage.send() {
            return; // its deadline passed in the queue
        }
        self.last_id.0 += 1;
        self.outbox.push(self.last_id, &call.body);
        self.waiting.insert(self.last_id, (call.reply, time::now()));
    }

    fn receive(&mut self) -> Result<(), WireError> {
        while let Some(frame) = self.inbox.take()? {
            // Nobody waits for a ping's answer, nor for one whose deadline has passed.
            if let Some((reply, sent)) = self.waiting.remove(&frame.id) {
                // Those count, too, that are too late for the one who asked.
                self.trips.iter().for_each(|trips| trips.note(sent.elapsed()));
                let _ = reply.send(Ok(frame.body));
            }
        }
        Ok(())
    }
}
