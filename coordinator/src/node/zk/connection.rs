//! Task of one connection: owns the socket and carries out the decisions of the conversation.
//!
//! One round: take the input (messages, bytes), decode all complete frames, answer all answerable requests,
//! write all output at once, wait. Back-pressure: the task reads nothing while the conversation accepts no
//! frame.
//!
//! Invariant: a turn of the task ends soon after `env::busy` reports its end, whatever the client sends
//! (`env::turnstile` limits the turn's length and schedules the next one).

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::limits;
use bytes::BytesMut;
use rowlock_env::net::Stream;
use rowlock_env::time::{self, Instant, Sleep};
use rowlock_env::{busy, decides, task};
use rowlock_metrics::memory::{CONNECTION_BYTES, Part, TLS_BYTES};
use rowlock_proto::{SessionId, frame};
use rowlock_tls::Keeper;

use super::conversation::Conversation;
use super::end_reason::EndReason;
use super::handshake::{Greeting, Handshake, OpenedSession, Refused};
use super::liveness_timer::{LivenessTimer, Order};
use super::shared::{ClientContext, Shared};
use super::wire::Wire;
use super::{four_letter_words, secure};
use crate::node::delivery::outbox::{CloseReason, Inbox};
use crate::node::delivery::registry::{ClientConnection, Door};
use crate::node::proposer::{NotTaken, Submission};

/// Pause before the next keepalive request to the leader after a full queue.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Granularity of the accounting of held bytes: most connections never hold as much.
const HELD_STEP_BYTES: u64 = 16 << 10;

// Most connections are idle most of the time, and a task is as large as its largest await. So a wait that is
// rare, or happens once, lives on the heap.

/// Serves an accepted socket to its end. `peer` is registered; the task removes it from the registry at the
/// end.
pub(super) fn run(
    shared: Arc<Shared>,
    stream: Stream,
    peer: Arc<ClientConnection>,
    inbox: Inbox,
) -> impl Future<Output = ()> + Send + use<> {
    let place = RegisteredConnection::take(shared, peer);
    Box::new(ConnectionTask { place, inbox, wire: Wire::new(stream) }).serve()
}

/// Serves a connection after its TLS handshake.
pub(super) async fn run_secured(
    shared: Arc<Shared>,
    keeper: Arc<Keeper>,
    stream: Stream,
    peer: Arc<ClientConnection>,
    mut inbox: Inbox,
) {
    let place = RegisteredConnection::take(shared, peer);
    let deadline = place.handshake_deadline();
    let shaken = secure::shake_hands(&place.shared, &place.peer, &keeper, stream, &mut inbox, deadline);
    match Box::pin(shaken).await {
        Ok(stream) => Box::new(ConnectionTask { place, inbox, wire: Wire::new(stream) }).serve().await,
        Err(end) => {
            place.shared.context.metrics.connections_rejected_total.inc();
            place.shared.report(&place.peer, &end);
        }
    }
}

/// Registration of the connection in the registry and the metrics. Dropping it removes all entries, also when
/// the task is aborted.
struct RegisteredConnection {
    shared: Arc<Shared>,
    peer: Arc<ClientConnection>,
    session: Option<SessionId>,
}

impl RegisteredConnection {
    fn take(shared: Arc<Shared>, peer: Arc<ClientConnection>) -> RegisteredConnection {
        shared.context.metrics.connections.inc();
        let place = RegisteredConnection { shared, peer, session: None };
        place.shared.context.replica.memory.shift(Part::Connections, place.own_bytes() as i64);
        place
    }

    /// Returns the bytes that the connection always holds.
    fn own_bytes(&self) -> u64 {
        match self.peer.door {
            Door::Plain => CONNECTION_BYTES,
            Door::Secure => CONNECTION_BYTES + TLS_BYTES,
        }
    }

    fn handshake_deadline(&self) -> Instant {
        self.peer.accepted_at + self.shared.handshake_max
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        let context = &self.shared.context;
        {
            let mut watches = context.replica.watches.lock();
            watches.leave(self.peer.id);
            watches.show(&context.metrics);
        }
        context.registry.gone(self.peer.id, self.session);
        context.metrics.connections.dec();
        let held = self.own_bytes() + self.peer.stats.held.swap(0, Relaxed);
        context.replica.memory.shift(Part::Connections, -(held as i64));
        context.metrics.requests_outstanding.shift(-(self.peer.stats.outstanding.swap(0, Relaxed) as i64));
    }
}

struct ConnectionTask {
    place: RegisteredConnection,
    inbox: Inbox,
    wire: Wire,
}

/// A connection after its handshake, without waiting code.
struct ActiveConnection {
    connection: ConnectionTask,
    conversation: Conversation,
}

enum Round {
    /// Wait for the client's next bytes, or for the node.
    Done,
    /// The turn is over with work left for the next one.
    TurnOver,
    /// The proposer is full. The caller submits this write, then repeats the round.
    Full(Box<Submission>),
}

enum Event {
    /// The timer has fired.
    Due,
    /// The socket took bytes.
    Wrote(io::Result<usize>),
    Read(io::Result<usize>),
    /// The inbox has messages.
    Message,
}

impl ConnectionTask {
    async fn serve(self: Box<Self>) {
        if let Some(talk) = Box::pin(self.greet()).await {
            talk.run().await;
        }
    }

    /// Does the handshake. Returns `None` if the connection ends without a session.
    async fn greet(mut self: Box<Self>) -> Option<Box<ActiveConnection>> {
        let deadline = self.place.handshake_deadline();
        let RegisteredConnection { shared, peer, .. } = &self.place;
        let mut handshake = Handshake { shared, peer, inbox: &mut self.inbox };
        let greeting = match time::timeout_at(deadline, Box::pin(handshake.run(&mut self.wire))).await {
            Ok(greeting) => greeting,
            Err(_) => Err(EndReason::NoHandshake.into()),
        };
        match greeting {
            Ok(Greeting::Session(opened)) => return Some(Box::new(self.begin(opened))),
            Ok(Greeting::Word(word)) => {
                let text = four_letter_words::answer(shared, word).await;
                self.wire.finish(BytesMut::from(text.as_bytes())).await;
            }
            Err(Refused { end, reply }) => {
                shared.context.metrics.connections_rejected_total.inc();
                shared.report(peer, &end);
                if !reply.is_empty() {
                    self.wire.finish(reply).await;
                }
            }
        }
        None
    }

    fn begin(mut self, opened: OpenedSession) -> ActiveConnection {
        let OpenedSession { attached, zxid, reply } = opened;
        let (session, timeout) = (attached.session, Duration::from(attached.timeout));
        self.place.session = Some(session);
        let RegisteredConnection { shared, peer, .. } = &self.place;
        peer.stats.opened(session, timeout);
        let proven = peer.proven.get().cloned();
        let identities = proven.unwrap_or_else(|| shared.neighbours.identities(peer.addr.ip()));
        tracing::debug!(peer = %peer.addr, %session, ?timeout, "session attached");
        let mut conversation = Conversation::new(shared.clone(), peer.clone(), attached, zxid, identities);
        conversation.output = reply;
        ActiveConnection { connection: self, conversation }
    }
}

impl ActiveConnection {
    /// Serves the connection from the handshake to its end.
    async fn run(mut self: Box<Self>) {
        let mut now = time::now();
        let mut liveness = LivenessTimer::new(self.conversation.session_timeout(), now);
        let mut wake_at = liveness.wake_at();
        let mut timer = pin!(time::sleep_until(wake_at));
        let end = loop {
            match self.round(now) {
                Ok(Round::Done) => {}
                // The rest of the work is bounded by what was read at once: the timer can wait.
                Ok(Round::TurnOver) => {
                    task::yield_now().await;
                    now = time::now();
                    continue;
                }
                Ok(Round::Full(submission)) => match Box::pin(self.wait_and_submit(submission)).await {
                    Ok(()) => {
                        now = time::now();
                        continue;
                    }
                    Err(end) => break end,
                },
                Err(end) => break end,
            }
            self.free_buffers();
            if let Err(end) = self.weigh() {
                break end;
            }
            if self.conversation.must_ask_again() && now + ASK_AGAIN_AFTER < wake_at {
                wake_at = now + ASK_AGAIN_AFTER;
                timer.set(time::sleep_until(wake_at));
            }
            let event = poll_fn(|cx| self.poll_event(timer.as_mut(), cx)).await;
            now = time::now();
            let is_due = matches!(event, Event::Due);
            if let Err(end) = self.happened(event, now, &mut liveness) {
                break end;
            }
            // Only an earlier time sets the timer at once: the timer discovers a later time when it fires.
            if is_due || liveness.wake_at() < wake_at {
                wake_at = liveness.wake_at();
                timer.set(time::sleep_until(wake_at));
            }
        };
        self.ended(liveness, &end);
        if matches!(end, EndReason::Finished | EndReason::Lost | EndReason::Told(CloseReason::SessionEnded)) {
            Box::pin(self.linger()).await;
        }
    }

    /// Polls the events in order of precedence.
    fn poll_event(&mut self, timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<Event> {
        let ActiveConnection { connection: ConnectionTask { wire, inbox, .. }, conversation } = self;
        if timer.poll(cx).is_ready() {
            return Poll::Ready(Event::Due);
        }
        if !conversation.output.is_empty()
            && let Poll::Ready(written) = wire.poll_write(cx, &mut conversation.output)
        {
            return Poll::Ready(Event::Wrote(written));
        }
        if conversation.accepts()
            && let Poll::Ready(read) = wire.poll_read(cx)
        {
            return Poll::Ready(Event::Read(read));
        }
        inbox.poll_ready(cx).map(|()| Event::Message)
    }

    fn happened(
        &mut self,
        event: Event,
        now: Instant,
        liveness: &mut LivenessTimer,
    ) -> Result<(), EndReason> {
        match event {
            Event::Due => {
                self.conversation.ask_again();
                if decides!("connection-owes-answer", self.conversation.owes_an_answer()) {
                    liveness.excuse(now);
                }
                match liveness.tick(now) {
                    Order::Close => return Err(EndReason::Silent),
                    Order::Touch => self.touch(),
                    Order::Rest => {}
                }
            }
            Event::Wrote(written) => match written? {
                0 => return Err(EndReason::HungUp),
                _ => self.wrote(now, liveness),
            },
            Event::Read(read) => {
                let count = self.connection.wire.was_read(read)?;
                self.context().metrics.bytes_received_total.add(count as u64);
                if decides!("received-bytes-touch", liveness.heard(now) == Order::Touch) {
                    self.touch();
                }
            }
            Event::Message => {}
        }
        Ok(())
    }

    /// Frees the buffers of a burst, and of an idle client.
    fn free_buffers(&mut self) {
        let ConnectionTask { wire, inbox, .. } = &mut self.connection;
        wire.tidy();
        if self.conversation.has_come_to_rest() {
            self.conversation.rest(inbox);
            wire.rest();
        }
    }

    /// Reports the held bytes. If the connections of this node hold too much, closes this one if it holds
    /// much.
    fn weigh(&self) -> Result<(), EndReason> {
        let ConnectionTask { place: RegisteredConnection { shared, peer, .. }, wire, .. } = &self.connection;
        let held = (wire.input.capacity() + self.conversation.held_bytes()) as u64 / HELD_STEP_BYTES
            * HELD_STEP_BYTES;
        let memory = &shared.context.replica.memory;
        let before = peer.stats.held.load(Relaxed);
        if held != before {
            peer.stats.held.store(held, Relaxed);
            memory.shift(Part::Connections, held as i64 - before as i64);
        }
        if held > limits::HELD_SMALL_BYTES && memory.connections_are_full() {
            return Err(EndReason::Slow(
                "the connections of this node hold too much memory, and this one much of it",
            ));
        }
        Ok(())
    }

    fn ended(&mut self, liveness: LivenessTimer, end: &EndReason) {
        self.conversation.record_unanswered();
        if decides!("leaving-connection-touches", liveness.leave() == Order::Touch) {
            self.touch();
        }
        if decides!("client-hangs-up", end.is_hang_up())
            && let Some(disconnect) = self.conversation.client_disconnect()
        {
            self.context().touch.client_disconnected(disconnect);
        }
        let RegisteredConnection { shared, peer, .. } = &self.connection.place;
        shared.report(peer, end);
    }

    async fn linger(self: Box<Self>) {
        let ActiveConnection { connection: ConnectionTask { place, wire, .. }, mut conversation } = *self;
        let output = std::mem::take(&mut conversation.output);
        // Unregister before lingering: for all others, a client that has closed its session is gone.
        drop((place, conversation));
        wire.finish(output).await;
    }

    fn context(&self) -> &ClientContext {
        &self.connection.place.shared.context
    }

    fn touch(&self) {
        if decides!("conversation-keeps-session", self.conversation.keeps_its_session_alive()) {
            self.context().touch.touch(self.conversation.session());
        }
    }

    /// Excuses silence while the client's reading is the bottleneck: the client shows its life by reading.
    fn wrote(&self, now: Instant, liveness: &mut LivenessTimer) {
        if !self.conversation.accepts() {
            liveness.excuse(now);
        }
    }

    /// Does all work without waiting, within a turn; all of it counts as done at `now`.
    fn round(&mut self, now: Instant) -> Result<Round, EndReason> {
        let ActiveConnection { connection: ConnectionTask { place, inbox, wire }, conversation } = self;
        let context = &place.shared.context;
        loop {
            conversation.take_messages(inbox, now);
            let mut progress = 0;
            while conversation.accepts() && !busy::turn_is_over() {
                let Some(frame) = frame::split(&mut wire.input, limits::CLIENT_FRAME_MAX_BYTES)? else {
                    break;
                };
                progress += 1;
                conversation.receive(frame, now);
                if let Some(full) = submit_all(context, conversation)? {
                    return Ok(Round::Full(full));
                }
            }
            progress += conversation.answer(inbox, now);
            if let Some(full) = submit_all(context, conversation)? {
                return Ok(Round::Full(full));
            }
            let (was_full, is_over) = (conversation.is_full(), busy::turn_is_over());
            if decides!("turn-ends", progress == 0 || was_full || is_over) {
                wire.try_write(&mut conversation.output)?;
                if let Some(end) = conversation.take_end() {
                    return Err(end);
                }
                if is_over {
                    return Ok(Round::TurnOver);
                }
                if !was_full || conversation.is_full() {
                    return Ok(Round::Done);
                }
            }
        }
    }

    /// Waits while the proposer is full, without reading from the client. Handles messages of the node
    /// meanwhile.
    async fn wait_and_submit(&mut self, submission: Box<Submission>) -> Result<(), EndReason> {
        self.weigh()?;
        let ActiveConnection { connection: ConnectionTask { place, inbox, .. }, conversation } = self;
        let mut sending = pin!(place.shared.context.proposer.submit(*submission));
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return sent.map_err(|_| EndReason::Stopping),
                () = inbox.ready() => {
                    while !conversation.take_messages(inbox, time::now()) {
                        task::yield_now().await;
                    }
                    if let Some(end) = conversation.take_broken_off() {
                        return Err(end);
                    }
                }
            }
        }
    }
}

/// Submits all ready writes, up to the first refusal of a full proposer.
fn submit_all(
    context: &ClientContext,
    conversation: &mut Conversation,
) -> Result<Option<Box<Submission>>, EndReason> {
    while let Some(submission) = conversation.next_submission() {
        match context.proposer.try_submit(submission) {
            Ok(()) => {}
            Err(NotTaken::Full(submission)) => return Ok(Some(submission)),
            Err(NotTaken::Closed) => return Err(EndReason::Stopping),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use rowlock_env::turnstile::PASS_BYTES;

    use super::*;

    fn size_of_future<A, F>(_: fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connection_at_rest_fits_two_small_blocks_of_memory() {
        // tokio 1.54 adds 104 bytes and rounds up to a multiple of 128; the allocator provides blocks of 384
        // and 448. The turnstile's state has its own block of 32 bytes.
        let task = size_of_future(ConnectionTask::serve) + PASS_BYTES;
        assert!(task + 104 <= 384, "{task}");
        assert!(size_of::<ActiveConnection>() <= 448, "{}", size_of::<ActiveConnection>());
    }
}
