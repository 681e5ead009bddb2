//! The listening side of one connection: reads requests, has them carried out, writes the answers.
//!
//! One task owns the socket. Requests are begun in the order of their arrival (the Raft lanes rely on it: a
//! request is handed to openraft before the next one is looked at) and answered as they finish; on ordered
//! lanes one is finished before the next is begun.
//!
//! An answer that tells its asker nothing new does not leave by itself: it goes with the next one, or after a
//! moment. With a single client this saves each node a system call and a wake-up per commit, on its way to
//! the client.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rowlock_env::time::{self, Instant, Sleep};
use rowlock_proto::NodeId;
use rowlock_types::codec;
use rowlock_types::limits::{
    PEER_ANSWER_PATIENCE, PEER_BACKLOG_MAX_BYTES, PEER_FRAME_MAX_BYTES, PEER_IDLE_MAX, PEER_IN_FLIGHT_MAX,
};
use rowlock_types::memory::Share;

use super::frame::{Frame, RequestId};
use super::handshake::Lane;
use super::message::{Refusal, Request, Response};
use super::service::{PeerService, RaftConnection};
use super::urgency::{Urgencies, Urgency};
use super::wire::{Inbox, Outbox, WireError};

/// How often a connection looks whether its dialer still lives.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Turns requests into futures of their answers.
pub(super) struct Handler<S> {
    pub(super) from: NodeId,
    pub(super) lane: Lane,
    pub(super) raft: Box<dyn RaftConnection>,
    pub(super) service: Arc<S>,
}

impl<S: PeerService> Handler<S> {
    fn handle(&mut self, request: Request) -> BoxFuture<'static, Response> {
        let (from, service) = (self.from, self.service.clone());
        match request {
            Request::Raft(request) => self.raft.handle(request).map(Response::Raft).boxed(),
            Request::Forward { term, batch } => {
                async move { answer(service.forward(from, term, batch).await, |()| Response::Forwarded) }
                    .boxed()
            }
            Request::Touches { sessions, term } => async move {
                answer(service.touches(from, sessions, term).await, |refused| Response::TouchesNoted {
                    refused,
                })
            }
            .boxed(),
            Request::Departures { departures, term } => async move {
                let noted = service.departures(from, departures, term).await;
                answer(noted, |()| Response::DeparturesNoted)
            }
            .boxed(),
            Request::ReadIndex => {
                async move { answer(service.read_index().await, |index| Response::ReadIndex { index }) }
                    .boxed()
            }
            Request::Status => async move { Response::Status(service.status().await) }.boxed(),
            Request::Meet => async move { Response::Met(service.meet(from).await) }.boxed(),
            Request::AddLearner { node, member } => async move {
                answer(service.add_learner(node, member).await, |index| Response::MembershipChanged { index })
            }
            .boxed(),
            Request::ChangeVoters { voters } => async move {
                answer(service.change_voters(voters).await, |index| Response::MembershipChanged { index })
            }
            .boxed(),
            Request::Reconfigure(wanted) => {
                async move { answer(service.reconfigure(wanted).await, Response::Reconfigured) }.boxed()
            }
        }
    }
}

fn answer<T>(result: Result<T, Refusal>, response: impl FnOnce(T) -> Response) -> Response {
    result.map_or_else(Response::Refused, response)
}

type Running = FuturesUnordered<BoxFuture<'static, (RequestId, Urgency, Response)>>;

/// The listening side of one connection, after the handshake.
pub(super) struct Connection<S> {
    handler: Handler<S>,
    inbox: Inbox,
    outbox: Outbox,
    /// Read and not begun.
    backlog: VecDeque<Frame>,
    backlog_bytes: usize,
    /// Of the backlog.
    held: Share,
    /// Begun and not answered.
    running: Running,
    /// On the proposals lane: the first refusal, which holds for all that follows.
    refused: Option<Refusal>,
    /// How soon answers must leave.
    urgencies: Urgencies,
    /// Until then what is in the outbox may wait for company; unset if it must leave at once.
    patience: Option<Instant>,
}

impl<S: PeerService> Connection<S> {
    pub(super) fn new(handler: Handler<S>, inbox: Inbox, outbox: Outbox) -> Self {
        let (backlog, running) = (VecDeque::new(), Running::new());
        let held = inbox.share();
        let (refused, urgencies, patience) = (None, Urgencies::of(handler.lane), None);
        Connection {
            handler,
            inbox,
            outbox,
            backlog,
            backlog_bytes: 0,
            held,
            running,
            refused,
            urgencies,
            patience,
        }
    }

    /// Gives the reason of the end.
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
        let waits_until = self.patience;
        tokio::select! {
            biased;
            Some((id, urgency, response)) = self.running.next(), if !self.running.is_empty() => {
                self.answer(id, urgency, response);
                // All that is ready goes out in one write.
                while let Some(Some((id, urgency, response))) = self.running.next().now_or_never() {
                    self.answer(id, urgency, response);
                }
            }
            sent = self.outbox.drain_some(), if !self.outbox.is_empty() && waits_until.is_none() => sent?,
            filled = self.inbox.fill(), if reads => {
                filled?;
                self.receive()?;
            }
            () = at(waits_until), if waits_until.is_some() => self.patience = None,
            () = tick.as_mut() => {
                if reads && self.inbox.silence() >= PEER_IDLE_MAX {
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
                self.patience = None;
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
        let most = if self.handler.lane.is_ordered() { 1 } else { PEER_IN_FLIGHT_MAX };
        while self.running.len() < most && self.outbox.has_room() {
            let Some(frame) = self.backlog.pop_front() else { break };
            self.backlog_bytes -= frame.body.len();
            let request = self.decode(&frame.body)?;
            if let Some(refusal) = &self.refused {
                let refused = Response::Refused(refusal.clone());
                self.answer(frame.id, Urgency::AtOnce, refused);
                continue;
            }
            let (id, urgency) = (frame.id, self.urgencies.of_answer_to(&request));
            let response = self.handler.handle(request).map(move |response| (id, urgency, response));
            // Polled here once, before the next request is looked at, so that requests are handed on in their
            // order. Without the runtime's budget: a poll that is only put off would let the next one
            // overtake.
            let mut response = tokio::task::unconstrained(response).boxed();
            match (&mut response).now_or_never() {
                Some((id, urgency, response)) => self.answer(id, urgency, response),
                None => self.running.push(response),
            }
        }
        Ok(())
    }

    fn decode(&self, body: &Bytes) -> Result<Request, WireError> {
        let lane = self.handler.lane;
        let request = Request::decode(body, PEER_FRAME_MAX_BYTES)
            .map_err(|error| WireError::Protocol(error.to_string()))?;
        if !request.belongs_to(lane) {
            return Err(WireError::Protocol(format!("a request that does not belong on the {lane} lane")));
        }
        Ok(request)
    }

    fn answer(&mut self, id: RequestId, urgency: Urgency, response: Response) {
        if self.handler.lane == Lane::Proposals
            && let Response::Refused(refusal) = &response
        {
            self.refused = Some(refusal.clone());
        }
        let body = codec::encode(&response);
        assert!(body.len() <= PEER_FRAME_MAX_BYTES, "Invariant: answers are small");
        match urgency.with(&response) {
            Urgency::AtOnce => self.patience = None,
            Urgency::Patient if self.outbox.is_empty() => {
                self.patience = Some(time::now() + PEER_ANSWER_PATIENCE);
            }
            Urgency::Patient => {} // with what is there already
        }
        self.outbox.push(id, &body);
    }
}

/// Waits until then; for ever, if never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
