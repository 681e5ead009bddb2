//! The queue to a connection's task. Apply, sessions and watches push; only the connection's task takes.
//!
//! Must never make a pusher wait. Apply pushes while it holds the write lock of the state, so a slow client
//! loses its connection instead of slowing the node down.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::limits;
use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::rare::{self, Rare};
use rowlock_proto::ErrorCode;
use rowlock_sessions::HeartbeatWaiter;
use rowlock_state::outcome::Applied;

use crate::node::slow::WriteTimeline;

/// Message to a connection's task.
#[derive(Debug)]
pub enum Message {
    /// Encoded frame of a watch event, shared by all connections that watch the same path.
    Event(Bytes),
    /// Result of a submission.
    Applied {
        tag: u64,
        /// The result, boxed because messages are many and this variant is large.
        answer: Box<Answer>,
    },
    /// The outcome of this connection's outstanding submissions is unknown (leader lost): close.
    Lost,
    /// A reconfiguration shows in the local state, or was refused.
    Reconfigured {
        tag: u64,
        /// The code of a refusal.
        result: Result<(), ErrorCode>,
    },
    /// A report is complete, or refused.
    Reported { tag: u64, result: Result<String, ErrorCode> },
    /// The leader has recorded the keepalive: answer the waiting pings.
    Touched,
    /// The leader runs no timer for the session, so the pings keep waiting: for the session's end, or, while
    /// the leader has not applied the session's opening, for the next call to a leader.
    NotTouched,
    /// Close the connection for the given reason.
    Close(CloseReason),
}

/// Result of a submission.
#[derive(Debug)]
pub struct Answer {
    pub applied: Applied,
    /// How it came to it, if that was seen.
    pub timeline: Option<WriteTimeline>,
}

impl Message {
    /// The answer to the submission `tag`, whose timeline was not measured: for tests of what hears it.
    pub fn applied(tag: u64, applied: Applied) -> Message {
        Message::Applied { tag, answer: Box::new(Answer { applied, timeline: None }) }
    }

    /// Returns the approximate size in bytes. A shared event counts in full for each connection.
    fn weight(&self) -> usize {
        const BASE: usize = 64;
        BASE + match self {
            Message::Event(frame) => frame.len(),
            Message::Applied { answer, .. } => answer.applied.weight(),
            Message::Reported { result, .. } => result.as_ref().map_or(0, String::len),
            Message::Lost
            | Message::Reconfigured { .. }
            | Message::Touched
            | Message::NotTouched
            | Message::Close(_) => 0,
        }
    }
}

/// Reason for which the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its session expired or was closed elsewhere.
    SessionEnded,
    /// The session moved to another connection: close without a reply.
    SessionMoved,
    /// This node has lost contact to the quorum.
    NotServing,
    /// This node is about to stop: the connection answers earlier requests, and accepts no more.
    Leaving,
    /// An operator rebalances the clients. The connection acts as on [`CloseReason::Leaving`].
    Rebalanced,
    /// The node is shutting down.
    Shutdown,
    /// The connection is read-only, and the node has a quorum again: the client must reconnect.
    Writable,
    /// The client has sent no first frame, and too many later connections have sent none either.
    HalfOpen,
}

/// Sending side. Cheap to clone; a push to a closed connection does nothing.
#[derive(Clone)]
pub struct Outbox {
    shared: Arc<Mutex<OutboxQueue>>,
}

impl HeartbeatWaiter for Outbox {
    fn answer(&self, is_recorded: bool) {
        self.push(if decides!("keepalive-is-recorded", is_recorded) {
            Message::Touched
        } else {
            Message::NotTouched
        });
    }
}

/// Receiving side, owned by the connection's task. Dropping it closes the outbox.
pub struct Inbox {
    shared: Arc<Mutex<OutboxQueue>>,
}

/// Bounds of the queue.
#[derive(Clone, Copy)]
struct Max {
    messages: usize,
    bytes: usize,
}

/// Invariant: `messages` is empty unless `state` is `Open`.
struct OutboxQueue {
    messages: VecDeque<Message>,
    bytes: usize,
    max: Max,
    waker: Option<Waker>,
    state: OutboxState,
    /// Set after [`Message::Lost`] or an overflow. Stays set after the task has ended.
    is_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutboxState {
    Open,
    /// More than `max` queued: the connection must close.
    Overflowed,
    /// The connection's task has ended.
    Closed,
}

/// The client was too slow: the queue exceeded `limits::OUTBOX_MAX_MESSAGES` or `OUTBOX_MAX_BYTES`. The
/// queued messages are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "more than {} messages or {} bytes waited for the connection",
    limits::OUTBOX_MAX_MESSAGES,
    limits::OUTBOX_MAX_BYTES
)]
pub struct Overflowed;

/// Creates a connection's queue, bounded by `limits::OUTBOX_MAX_MESSAGES` and `OUTBOX_MAX_BYTES`.
pub fn channel() -> (Outbox, Inbox) {
    bounded_by(Max { messages: limits::OUTBOX_MAX_MESSAGES, bytes: limits::OUTBOX_MAX_BYTES })
}

fn bounded_by(max: Max) -> (Outbox, Inbox) {
    let (messages, state) = (VecDeque::new(), OutboxState::Open);
    let queue = OutboxQueue { messages, bytes: 0, max, waker: None, state, is_lost: false };
    let shared = Arc::new(Mutex::new(queue));
    (Outbox { shared: shared.clone() }, Inbox { shared })
}

impl Outbox {
    /// Queues a message and wakes the connection's task if it sleeps. Never waits. If the queue is full,
    /// drops all messages and marks the queue as overflowed, which closes the connection.
    pub fn push(&self, message: Message) {
        let waker = {
            let mut queue = self.shared.lock();
            // Also after the task has ended: later submissions of this connection may still be queued.
            queue.is_lost |= matches!(message, Message::Lost);
            if decides!("outbox-is-closed", queue.state != OutboxState::Open) {
                return;
            }
            if decides!(
                "outbox-overflows",
                queue.messages.len() >= queue.max.messages || queue.bytes >= queue.max.bytes
            ) {
                queue.is_lost = true;
                rare::taken(Rare::OutboxOverflowed);
                queue.state = OutboxState::Overflowed;
                queue.messages = VecDeque::new();
            } else {
                queue.bytes += message.weight();
                queue.messages.push_back(message);
            }
            queue.waker.take()
        };
        // Only the first push after the task went to sleep finds a waker: one wake-up per burst.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether the connection has lost replies: by an overflow, or because the outcome of a
    /// submission is unknown. No later write of this connection may reach the log then: the client repeats
    /// all writes, in order, on another connection.
    ///
    /// A client that has merely hung up has lost nothing, and the node executes its earlier requests: an
    /// ending program sends the release of its locks last.
    pub fn has_lost(&self) -> bool {
        self.shared.lock().is_lost
    }

    /// Returns a key that all clones share, and no other outbox has while a clone exists.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// Returns whether no task waits for a reply any more.
    pub fn is_closed(&self) -> bool {
        let queue = self.shared.lock();
        queue.state != OutboxState::Open || queue.is_lost
    }
}

impl Inbox {
    /// Moves all queued messages into `into`, which must be empty: the two buffers are swapped.
    pub fn take(&mut self, into: &mut VecDeque<Message>) -> Result<(), Overflowed> {
        debug_assert!(into.is_empty(), "what was taken before must have been handled");
        let mut queue = self.shared.lock();
        if queue.state == OutboxState::Overflowed {
            return Err(Overflowed);
        }
        std::mem::swap(&mut queue.messages, into);
        queue.bytes = 0;
        Ok(())
    }

    /// Frees the buffer of taken messages, if no message is queued.
    pub fn rest(&mut self) {
        let mut queue = self.shared.lock();
        if queue.messages.is_empty() {
            queue.messages = VecDeque::new();
        }
    }

    /// Waits for a message or an overflow. Cancel safe.
    pub async fn ready(&mut self) {
        poll_fn(|cx| self.poll_ready(cx)).await;
    }

    /// Waits for the result of a submission. Returns whether it was applied; otherwise it may still be
    /// applied.
    pub async fn is_applied(mut self) -> bool {
        let mut messages = VecDeque::new();
        loop {
            self.ready().await;
            if self.take(&mut messages).is_err() {
                return false;
            }
            for message in messages.drain(..) {
                match message {
                    Message::Applied { .. } => return true,
                    Message::Lost => return false,
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.shared.lock();
        if !queue.messages.is_empty() || queue.state == OutboxState::Overflowed {
            return Poll::Ready(());
        }
        match &mut queue.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            slot => *slot = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.state = OutboxState::Closed;
        queue.messages = VecDeque::new();
        queue.waker = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use rowlock_proto::Zxid;
    use rowlock_proto::response::Response;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_burst_wakes_the_task_once_and_is_taken_in_order() {
        let (outbox, mut inbox) = channel();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(inbox.poll_ready(&mut cx).is_pending());
        for byte in 0..100u8 {
            outbox.push(Message::Event(Bytes::copy_from_slice(&[byte])));
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(inbox.poll_ready(&mut cx).is_ready());
        let mut taken = VecDeque::new();
        inbox.take(&mut taken).unwrap();
        for (i, message) in taken.iter().enumerate() {
            assert!(matches!(message, Message::Event(b) if b[0] as usize == i), "{message:?}");
        }
        assert_eq!(taken.len(), 100);
        assert!(inbox.poll_ready(&mut cx).is_pending());
    }

    #[test]
    fn a_full_outbox_never_blocks_its_pusher_but_closes_the_connection() {
        let (outbox, mut inbox) = bounded_by(Max { messages: 3, bytes: usize::MAX });
        for _ in 0..10 {
            outbox.push(Message::Touched);
        }
        assert!(outbox.has_lost());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(inbox.poll_ready(&mut cx).is_ready());
        assert_eq!(inbox.take(&mut VecDeque::new()), Err(Overflowed));
    }

    #[test]
    fn a_few_large_messages_fill_an_outbox_and_what_was_taken_counts_no_more() {
        let (outbox, mut inbox) = bounded_by(Max { messages: usize::MAX, bytes: 2_000 });
        let event = || Message::Event(Bytes::from(vec![0; 1_000]));
        let mut taken = VecDeque::new();
        for _ in 0..10 {
            outbox.push(event());
            outbox.push(event());
            assert_eq!(inbox.take(&mut taken), Ok(()));
            assert_eq!(taken.drain(..).len(), 2);
        }
        let path = "p".repeat(3_000);
        let result = Ok(Response::PathStat(path, Default::default()));
        let applied = Applied { zxid: Zxid(1), result, attached: None };
        outbox.push(Message::applied(1, applied));
        assert!(!outbox.has_lost(), "one that is too large by itself still passes");
        outbox.push(Message::Touched);
        assert!(outbox.has_lost());
        assert_eq!(inbox.take(&mut taken), Err(Overflowed));
    }

    #[test]
    fn a_connection_that_has_lost_something_is_closed_before_its_task_knows() {
        let (outbox, mut inbox) = channel();
        outbox.push(Message::Touched);
        assert!(!outbox.has_lost());
        outbox.push(Message::Lost);
        assert!(outbox.has_lost());
        let mut taken = VecDeque::new();
        inbox.take(&mut taken).unwrap();
        assert!(matches!(taken.make_contiguous(), [Message::Touched, Message::Lost]));
    }

    #[test]
    fn pushing_to_a_connection_that_is_gone_keeps_nothing() {
        let (outbox, inbox) = channel();
        drop(inbox);
        outbox.push(Message::Touched);
        assert!(outbox.is_closed());
        assert!(!outbox.has_lost(), "its client has hung up, and that is all");
        outbox.push(Message::Lost);
        assert!(outbox.has_lost());
        assert!(outbox.shared.lock().messages.is_empty());
    }
}
