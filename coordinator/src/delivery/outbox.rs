//! The one queue towards a connection's task. Apply, sessions and watches push; the connection's task alone
//! takes.
//!
//! Must never do: make a pusher wait. Apply pushes while it holds the write lock of the state, so a client
//! that is too slow loses its connection instead of slowing everybody down.

use rowlock_env::rare::{self, Rare};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_proto::ErrorCode;
use rowlock_sessions::HeartbeatWaiter;
use rowlock_state::outcome::Applied;
use rowlock_types::limits;

use crate::way::WriteTimeline;

/// What a connection's task is told.
#[derive(Debug)]
pub enum Message {
    /// An encoded watch event frame (shared by all connections that watch the same thing).
    Event(Bytes),
    /// The answer to a submission.
    Applied {
        tag: u64,
        /// The outcome; boxed, because messages are many and this one is large.
        answer: Box<Answer>,
    },
    /// The outcome of this connection's outstanding submissions cannot be known (leader lost): close.
    Lost,
    /// A reconfiguration shows in the local state, or was refused.
    Reconfigured {
        tag: u64,
        /// Why it was refused.
        result: Result<(), ErrorCode>,
    },
    /// A report is made, or refused.
    Reported { tag: u64, result: Result<String, ErrorCode> },
    /// The pings that wait may be answered.
    Touched,
    /// The leader runs no timer for the session, so the pings go on waiting: for its end, or, while the
    /// leader has not applied its opening, for a leader that is asked again.
    NotTouched,
    /// Close the connection for the reason given (session ended, moved to another connection, shutdown, not
    /// serving).
    Close(CloseReason),
}

/// What has become of a submission.
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

    /// About how many bytes it takes. An event counts in full for each connection that hears it.
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

/// Why a connection is closed by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its session expired or was closed elsewhere.
    SessionEnded,
    /// Its session was attached to another connection: close without an answer.
    SessionMoved,
    /// This node has lost contact to the quorum.
    NotServing,
    /// This node is about to stop: what was asked is still answered, and no more is taken.
    Leaving,
    /// An operator wants the clients to spread. As [`CloseReason::Leaving`] for the connection.
    Rebalanced,
    /// The node is shutting down.
    Shutdown,
    /// The connection is read-only, and the node is in contact with a quorum again: the client is to come
    /// back.
    Writable,
    /// It has not sent its first frame, and too many that came later have not either.
    HalfOpen,
}

/// The pushing side. Cheap to clone; pushing to a connection that is gone does nothing.
#[derive(Clone)]
pub struct Outbox {
    shared: Arc<Mutex<OutboxQueue>>,
}

impl HeartbeatWaiter for Outbox {
    fn answer(&self, is_recorded: bool) {
        self.push(if is_recorded { Message::Touched } else { Message::NotTouched });
    }
}

/// The taking side, owned by the connection's task. Dropping it closes the outbox.
pub struct Inbox {
    shared: Arc<Mutex<OutboxQueue>>,
}

/// How much may wait.
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
    /// It has been told [`Message::Lost`], or has overflowed. Stays when the task is gone.
    is_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutboxState {
    Open,
    /// More than `max` waited: the connection is to be closed.
    Overflowed,
    /// The connection's task is gone.
    Closed,
}

/// The client was too slow: `limits::OUTBOX_MAX_MESSAGES` or `OUTBOX_MAX_BYTES` waited. What waited is
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "more than {} messages or {} bytes waited for the connection",
    limits::OUTBOX_MAX_MESSAGES,
    limits::OUTBOX_MAX_BYTES
)]
pub struct Overflowed;

/// The two ends of a connection's queue, bounded by `limits::OUTBOX_MAX_MESSAGES` and `OUTBOX_MAX_BYTES`.
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
    /// Queues a message and wakes the connection's task if it sleeps. Never waits. When the queue is full,
    /// everything in it is dropped and the connection's task is told to close.
    pub fn push(&self, message: Message) {
        let waker = {
            let mut queue = self.shared.lock();
            // Also of a connection that is gone: what it had asked for behind that may still wait.
            queue.is_lost |= matches!(message, Message::Lost);
            if queue.state != OutboxState::Open {
                return;
            }
            if queue.messages.len() >= queue.max.messages || queue.bytes >= queue.max.bytes {
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

    /// The connection has lost answers: because of an overflow, or because what it had asked for is lost from
    /// sight. From then on nothing more of it may go to the log: its client asks for everything again, in
    /// order, over another connection.
    ///
    /// A client that has merely hung up has lost nothing, and what it said before that is done: a program
    /// that ends gives its locks back as the last thing that it says.
    pub fn has_lost(&self) -> bool {
        self.shared.lock().is_lost
    }

    /// The same for all clones, and for no other outbox while one of them is there.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// No task waits for an answer any more.
    pub fn is_closed(&self) -> bool {
        let queue = self.shared.lock();
        queue.state != OutboxState::Open || queue.is_lost
    }
}

impl Inbox {
    /// Moves everything that waits into `into` (which must be empty, so that the two buffers can change
    /// places).
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

    /// Gives back the room of messages that were taken, if none waits.
    pub fn rest(&mut self) {
        let mut queue = self.shared.lock();
        if queue.messages.is_empty() {
            queue.messages = VecDeque::new();
        }
    }

    /// Waits until there is something to take (or an overflow to see). Cancel safe.
    pub async fn ready(&mut self) {
        poll_fn(|cx| self.poll_ready(cx)).await;
    }

    /// Waits for the answer to a submission. Returns whether it was applied; otherwise it may still happen.
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
    use rowlock_state::outcome::Outcome;

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
        let result = Ok(Outcome::Created { path, stat: Default::default() });
        let applied = Applied { origin: Default::default(), zxid: Zxid(1), result };
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
