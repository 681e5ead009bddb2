//! The task of one connection: it owns the socket and carries out what the conversation decides.
//!
//! One round: take what came (messages, bytes), decode all whole frames, answer all that can be answered, write all of
//! it at once, wait. Back-pressure: nothing is read while the conversation accepts no frame.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::BytesMut;
use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_proto::{SessionId, frame};
use tokio::io::AsyncWriteExt;

use super::conversation::Conversation;
use super::end::End;
use super::handshake::{Greeting, Handshake, Opened, Refused};
use super::listener::Shared;
use super::outbox::{CloseReason, Inbox};
use super::registry::Peer;
use super::vigil::{Order, Vigil};
use super::wire::{self, Wire};
use super::{identity, words};
use crate::limits;
use crate::proposer::{NotTaken, Submission};

/// Pause before the leader is asked again for its word on pings, when the queue of such questions was full.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

// Most connections do nothing most of the time, and a task is as large as the largest of what it may be waiting for. So
// what is rarely waited for, or only once, is on the heap while it is.

/// Serves one accepted socket to its end. `peer` is registered; it is taken off the registry at the end.
pub(super) fn run(
    shared: Arc<Shared>,
    stream: Stream,
    peer: Arc<Peer>,
    inbox: Inbox,
) -> impl Future<Output = ()> + Send + use<> {
    shared.context.metrics.connections.inc();
    let departure = Departure { shared: shared.clone(), peer: peer.clone(), session: None };
    let wire = Wire::new(stream);
    Box::new(Connection { shared, peer, inbox, wire, departure }).serve()
}

/// Takes the connection off the node's books, also when its task is aborted.
struct Departure {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    session: Option<SessionId>,
}

impl Drop for Departure {
    fn drop(&mut self) {
        let context = &self.shared.context;
        {
            let mut watches = context.replica.watches.lock();
            watches.leave(self.peer.id);
            context.metrics.watches.set(watches.len() as u64);
        }
        context.registry.gone(self.peer.id, self.session);
        context.metrics.connections.dec();
        context.metrics.requests_outstanding.shift(-(self.peer.stats.outstanding.swap(0, Relaxed) as i64));
    }
}

struct Connection {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    inbox: Inbox,
    wire: Wire,
    departure: Departure,
}

impl Connection {
    async fn serve(self: Box<Self>) {
        if let Some((connection, opened)) = Box::pin(self.greet()).await {
            connection.converse(opened).await;
        }
    }

    /// Does the handshake. `None`: there is no session, and the connection is done with.
    async fn greet(mut self: Box<Self>) -> Option<(Box<Self>, Box<Opened>)> {
        let deadline = time::now() + self.shared.handshake_max;
        let mut handshake = Handshake { shared: &self.shared, peer: &self.peer, inbox: &mut self.inbox };
        let greeting = match time::timeout_at(deadline, Box::pin(handshake.run(&mut self.wire))).await {
            Ok(greeting) => greeting,
            Err(_) => Err(End::NoHandshake.into()),
        };
        match greeting {
            Ok(Greeting::Session(opened)) => return Some((self, Box::new(opened))),
            Ok(Greeting::Word(word)) => {
                let text = words::answer(&self.shared, word).await;
                self.wire.finish(BytesMut::from(text.as_bytes())).await;
            }
            Err(Refused { end, reply }) => {
                self.shared.context.metrics.connections_rejected_total.inc();
                self.shared.report(&self.peer, &end);
                if !reply.is_empty() {
                    self.wire.finish(reply).await;
                }
            }
        }
        None
    }

    async fn converse(mut self: Box<Self>, opened: Box<Opened>) {
        // Its box would else be there as long as the connection.
        let opened = {
            let boxed = opened;
            *boxed
        };
        let (mut conversation, mut vigil) = self.begin(opened);
        let end = self.talk(&mut conversation, &mut vigil).await;
        self.ended(&conversation, vigil, &end);
        if matches!(end, End::Finished | End::Lost | End::Told(CloseReason::SessionEnded)) {
            let output = std::mem::take(&mut conversation.output);
            // Off the books before lingering: a client that has closed its session is gone for everybody else.
            drop(self.departure);
            Box::pin(self.wire.finish(output)).await;
        }
    }

    fn begin(&mut self, opened: Opened) -> (Conversation, Vigil) {
        let Opened { attached, reply } = opened;
        let timeout = attached.timeout;
        self.departure.session = Some(attached.session);
        self.peer.stats.opened(attached.session, timeout);
        let identities = identity::of_address(self.peer.addr.ip());
        let watches = &self.shared.context.replica.watches;
        watches.lock().join(self.peer.id, self.peer.outbox.clone(), identities.clone());
        tracing::debug!(peer = %self.peer.addr, session = %attached.session, ?timeout, "session attached");
        let mut conversation =
            Conversation::new(self.shared.clone(), self.peer.clone(), attached, identities);
        conversation.output = reply;
        (conversation, Vigil::new(timeout, time::now()))
    }

    fn ended(&self, conversation: &Conversation, vigil: Vigil, end: &End) {
        if vigil.leave() == Order::Touch {
            self.touch(conversation);
        }
        if end.is_hang_up()
            && let Some(departure) = conversation.departure()
        {
            self.shared.context.touch.departed(departure);
        }
        self.shared.report(&self.peer, end);
    }

    async fn talk(&mut self, conversation: &mut Conversation, vigil: &mut Vigil) -> End {
        let mut wake_at = vigil.wake_at();
        let mut timer = pin!(time::sleep_until(wake_at));
        loop {
            match self.round(conversation) {
                Ok(None) => {}
                Ok(Some(submission)) => {
                    match Box::pin(self.wait_and_submit(conversation, *submission)).await {
                        Ok(()) => continue,
                        Err(end) => return end,
                    }
                }
                Err(end) => return end,
            }
            self.wire.tidy();
            if conversation.has_come_to_rest() {
                conversation.rest(&mut self.inbox);
                self.wire.rest();
            }
            if conversation.must_ask_again() && time::now() + ASK_AGAIN_AFTER < wake_at {
                wake_at = time::now() + ASK_AGAIN_AFTER;
                timer.set(time::sleep_until(wake_at));
            }
            tokio::select! {
                biased;
                () = &mut timer => {
                    let now = time::now();
                    conversation.ask_again();
                    if conversation.owes_an_answer() {
                        vigil.excuse(now);
                    }
                    match vigil.tick(now) {
                        Order::Close => return End::Silent,
                        Order::Touch => self.touch(conversation),
                        Order::Rest => {}
                    }
                    wake_at = vigil.wake_at();
                    timer.set(time::sleep_until(wake_at));
                }
                written = self.wire.write.write_buf(&mut conversation.output), if !conversation.output.is_empty() => {
                    match written {
                        Ok(0) => return End::HungUp,
                        Ok(count) => self.wrote(conversation, count, vigil),
                        Err(e) => return e.into(),
                    }
                }
                read = wire::read(&mut self.wire.read, self.wire.room, &mut self.wire.input),
                    if conversation.accepts() =>
                {
                    match self.wire.was_read(read) {
                        Ok(count) => {
                            self.shared.context.metrics.bytes_received_total.add(count as u64);
                            if vigil.heard(time::now()) == Order::Touch {
                                self.touch(conversation);
                            }
                            // Only an earlier time is set at once: a later one is found out when the timer fires.
                            if vigil.wake_at() < wake_at {
                                wake_at = vigil.wake_at();
                                timer.set(time::sleep_until(wake_at));
                            }
                        }
                        Err(end) => return end,
                    }
                }
                () = self.inbox.ready() => {}
            }
        }
    }

    fn touch(&self, conversation: &Conversation) {
        if conversation.keeps_its_session_alive() {
            self.shared.context.touch.touch(conversation.session());
        }
    }

    /// A client whose reading is the bottleneck shows its life by reading.
    fn wrote(&self, conversation: &Conversation, count: usize, vigil: &mut Vigil) {
        self.shared.context.metrics.bytes_sent_total.add(count as u64);
        if !conversation.accepts() {
            vigil.excuse(time::now());
        }
    }

    /// Does everything that can be done without waiting. Gives what the proposer has no room for: when it has been
    /// submitted, the round is to be done again.
    fn round(&mut self, conversation: &mut Conversation) -> Result<Option<Box<Submission>>, End> {
        loop {
            let now = time::now();
            conversation.take_messages(&mut self.inbox, now);
            let mut progress = 0;
            while conversation.accepts() {
                let Some(frame) = frame::split(&mut self.wire.input, limits::CLIENT_FRAME_MAX_BYTES)? else {
                    break;
                };
                progress += 1;
                conversation.receive(frame, now);
                if let full @ Some(_) = self.submit_all(conversation)? {
                    return Ok(full);
                }
            }
            progress += conversation.answer(&mut self.inbox, now);
            if let full @ Some(_) = self.submit_all(conversation)? {
                return Ok(full);
            }
            let was_full = conversation.is_full();
            if progress == 0 || was_full {
                let written = self.wire.try_write(&mut conversation.output)?;
                self.shared.context.metrics.bytes_sent_total.add(written as u64);
                if let Some(end) = conversation.take_end() {
                    return Err(end);
                }
                if !was_full || conversation.is_full() {
                    return Ok(None);
                }
            }
        }
    }

    /// Submits what is to be submitted, up to the first for which there is no room.
    fn submit_all(&mut self, conversation: &mut Conversation) -> Result<Option<Box<Submission>>, End> {
        while let Some(submission) = conversation.next_submission() {
            match self.shared.context.proposer.try_submit(submission) {
                Ok(()) => {}
                Err(NotTaken::Full(submission)) => return Ok(Some(submission)),
                Err(NotTaken::Closed) => return Err(End::Stopping),
            }
        }
        Ok(None)
    }

    /// Waits while the proposer is full, and nothing more is read meanwhile. Hears what the node has to say.
    async fn wait_and_submit(
        &mut self,
        conversation: &mut Conversation,
        submission: Submission,
    ) -> Result<(), End> {
        let mut sending = pin!(self.shared.context.proposer.submit(submission));
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return sent.map_err(|_| End::Stopping),
                () = self.inbox.ready() => {
                    conversation.take_messages(&mut self.inbox, time::now());
                    if let Some(end) = conversation.take_broken_off() {
                        return Err(end);
                    }
                }
            }
        }
    }
}
