//! Calls of many tasks over one link: the task of a lane owns the link and distributes the answers. The task
//! decodes no message and resends no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::memory::Share;
use tokio::sync::{mpsc, oneshot};

use super::dial::Dialer;
use super::error::PeerError;
use super::link::{LinkEvent, PeerLink};
use super::round_trips::RoundTrips;

/// Sender to the waiting caller; closed when the caller's deadline has passed.
type Reply = oneshot::Sender<Result<Bytes, PeerError>>;

/// Request in the queue of a lane.
pub(super) struct Call {
    pub(super) body: Vec<u8>,
    pub(super) _held: Share,
    pub(super) reply: Reply,
    /// Shared with the caller.
    pub(super) stage: Arc<Stage>,
}

/// Connection state of a lane, for callers that time out and for status.
#[derive(Clone, Debug, Default)]
pub(super) enum Health {
    /// Not connected, without an error.
    #[default]
    Idle,
    Connected,
    /// The last attempt to dial failed with this error.
    Failing(PeerError),
}

/// Decides once whether a request was sent: the lane that sends the request and the caller that times out
/// race for the decision. So a sent request is never reported as "not sent".
#[derive(Default)]
pub(super) struct Stage(AtomicU8);

impl Stage {
    const QUEUED: u8 = 0;
    const SENT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// Marks the request as sent. Returns false if the caller gave up first.
    fn send(&self) -> bool {
        self.leave(Self::SENT)
    }

    /// Marks the request as given up. Returns false if the request was already sent.
    pub(super) fn give_up(&self) -> bool {
        self.leave(Self::GIVEN_UP)
    }

    fn leave(&self, to: u8) -> bool {
        self.0.compare_exchange(Self::QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Runs a lane's task until `queue` has no sender left.
pub(super) async fn run(
    dialer: Dialer,
    mut queue: mpsc::Receiver<Call>,
    health: Arc<Mutex<Health>>,
    trips: Option<Arc<RoundTrips>>,
) {
    while let Some(first) = queue.recv().await {
        let (mut link, mut first) = (PeerLink::open(dialer.clone()), Some(first));
        loop {
            tokio::select! {
                biased;
                event = link.next() => match event {
                    LinkEvent::Moved => {
                        *health.lock() = Health::Connected;
                        link.retain(|(reply, _): &(Reply, Instant)| !reply.is_closed());
                        first.take().into_iter().for_each(|first| send(&mut link, first));
                    }
                    LinkEvent::Answered { tag: (reply, sent), answer } => {
                        // Late answers count, too: the caller may have timed out.
                        trips.iter().for_each(|trips| trips.record(sent.elapsed()));
                        let _ = reply.send(Ok(answer));
                    }
                    LinkEvent::Ended { unanswered, error } => {
                        fail(unanswered.into_iter().map(|(reply, _)| reply), &error);
                        *health.lock() = Health::Idle;
                        if let Some(first) = first {
                            *health.lock() = Health::Failing(error.clone());
                            let queued = std::iter::from_fn(|| queue.try_recv().ok());
                            fail([first].into_iter().chain(queued).map(|call| call.reply), &error);
                        }
                        break;
                    }
                },
                call = queue.recv(), if link.has_room() => {
                    let Some(call) = call else { return };
                    send(&mut link, call);
                    // Send all queued requests in one write.
                    while link.has_room() && let Ok(call) = queue.try_recv() {
                        send(&mut link, call);
                    }
                }
            }
        }
    }
}

fn send(link: &mut PeerLink<(Reply, Instant)>, call: Call) {
    let Call { body, reply, stage, .. } = call;
    if !reply.is_closed() && stage.send() {
        link.send(&body, (reply, time::now())).expect("Invariant: its size was looked at when it was queued");
    }
}

fn fail(replies: impl IntoIterator<Item = Reply>, error: &PeerError) {
    for reply in replies {
        let _ = reply.send(Err(error.clone())); // a caller that timed out has dropped the receiver
    }
}
