//! Listening side of one connection: reads requests, passes them to the handler, writes the answers.
//!
//! One task owns the socket. Requests begin in the order of their arrival (the Raft lanes rely on this: a
//! request reaches openraft before the next one is decoded) and are answered as they finish. On ordered lanes
//! one request finishes before the next begins.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rowlock_env::decides;
use rowlock_env::time::{self, Sleep};
use rowlock_metrics::memory::Share;

use super::frame::{Frame, RequestId};
use super::handshake::Lane;
use super::service::{Answer, Conversation};
use super::wire::{Inbox, Outbox, WireError};
use crate::limits::{PEER_BACKLOG_MAX_BYTES, PEER_FRAME_MAX_BYTES, PEER_IDLE_MAX, PEER_IN_FLIGHT_MAX};

/// Period in which a connection checks that its dialer is alive.
const IDLE_TICK: Duration = Duration::from_secs(1);

type Running = FuturesUnordered<BoxFuture<'static, (RequestId, Answer)>>;

pub(super) struct Connection<C> {
    lane: Lane,
    conversation: C,
    inbox: Inbox,
    outbox: Outbox,
    /// Requests that were read and have not begun.
    backlog: VecDeque<Frame>,
    backlog_bytes: usize,
    held: Share,
    /// Requests that have begun and have no answer.
    running: Running,
    /// First refusal on the proposals lane; answers all later requests.
    refused: Option<Vec<u8>>,
}

impl<C: Conversation> Connection<C> {
    pub(super) fn new(lane: Lane, conversation: C, inbox: Inbox, outbox: Outbox) -> Self {
        let (backlog, running) = (VecDeque::new(), Running::new());
        let held = inbox.share();
        let (backlog_bytes, refused) = (0, None);
        Connection { lane, conversation, inbox, outbox, backlog, backlog_bytes, held, running, refused }
    }

    /// Serves the connection until an error ends it, and returns the error.
    pub(super) async fn run(mut self) -> WireError {
        let mut tick = std::pin::pin!(time::sleep_about(IDLE_TICK));
        loop {
            if let Err(error) = self.step(tick.as_mut()).await {
                return error;
            }
        }
    }

    async fn step(&mut self, mut tick: Pin<&mut Sleep>) -> Result<(), WireError> {
        let reads = self.backlog.len() < PEER_IN_FLIGHT_MAX && self.backlog_bytes < PEER_BACKLOG_MAX_BYTES;
        tokio::select! {
            biased;
            Some((id, answer)) = self.running.next(), if !self.running.is_empty() => {
                self.answer(id, answer);
                // Send all finished answers in one write.
                while let Some(Some((id, answer))) = self.running.next().now_or_never() {
                    self.answer(id, answer);
                }
            }
            sent = self.outbox.drain_some(), if !self.outbox.is_empty() => sent?,
            filled = self.inbox.fill(), if reads => {
                filled?;
                self.receive()?;
            }
            () = tick.as_mut() => {
                if decides!("peer-is-idle", reads && self.inbox.silence() >= PEER_IDLE_MAX) {
                    return Err(WireError::Silent(self.inbox.silence()));
                }
                tick.set(time::sleep_about(IDLE_TICK));
            }
        }
        self.begin()?;
        self.held.hold(self.backlog_bytes);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), WireError> {
        while let Some(frame) = self.inbox.take()? {
            if frame.id == RequestId::NONE {
                self.outbox.push(RequestId::NONE, &[]); // a ping
            } else {
                self.backlog_bytes += frame.body.len();
                self.backlog.push_back(frame);
            }
        }
        Ok(())
    }

    /// Begins as many requests as may run, in order.
    fn begin(&mut self) -> Result<(), WireError> {
        let most = if self.lane.is_ordered() { 1 } else { PEER_IN_FLIGHT_MAX };
        while self.running.len() < most && self.outbox.has_room() {
            let Some(frame) = self.backlog.pop_front() else { break };
            self.backlog_bytes -= frame.body.len();
            let request = self.conversation.decode(&frame.body).map_err(WireError::Protocol)?;
            if let Some(refusal) = &self.refused {
                let refused = Answer { body: refusal.clone(), refuses: true };
                self.answer(frame.id, refused);
                continue;
            }
            let id = frame.id;
            let answer = self.conversation.handle(request).map(move |answer| (id, answer));
            // Polls the handler once before the next request is decoded, so that requests are passed on in
            // order. The poll is not subject to the runtime's budget: a deferred poll would let the next
            // request overtake.
            let mut answer = tokio::task::unconstrained(answer).boxed();
            match (&mut answer).now_or_never() {
                Some((id, answer)) => self.answer(id, answer),
                None => self.running.push(answer),
            }
        }
        Ok(())
    }

    fn answer(&mut self, id: RequestId, answer: Answer) {
        let Answer { body, refuses } = answer;
        assert!(body.len() <= PEER_FRAME_MAX_BYTES, "Invariant: answers are small");
        self.outbox.push(id, &body);
        if decides!("proposals-were-refused", refuses && self.lane == Lane::Proposals) {
            self.refused = Some(body);
        }
    }
}
