//! Output of a conversation: replies in the order of their requests, and events between them. Must never
//! decide the content of a reply.
//!
//! End of a conversation: at once, or after the reply to the last request.
//!
//! Invariant: the client receives no reason. It learns of the end by the last reply, or by the closed
//! connection.
//!
//! Release of a conversation's buffers during a client's idle time. Most sessions are idle most of the time,
//! and the leftovers of the last requests would be larger than the sessions themselves.
//!
//! A late release does not help: buffers of many new sessions lie between their permanent blocks, and the
//! allocator cannot return either. So the first requests, by which clients explore the server, leave no
//! buffers.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use crate::limits;
use bytes::{Bytes, BytesMut};
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::time::Instant;
use rowlock_proto::response::{ReplyHeader, Response};
use rowlock_proto::{ErrorCode, Zxid, encode};
use rowlock_state::outcome::Applied;

use super::super::end_reason::EndReason;
use super::super::pending::Received;
use super::{Conversation, Inbox, Phase};
use crate::node::delivery::outbox::CloseReason;
use crate::node::delivery::stats::LastReply;

impl Conversation {
    pub(super) fn answer_write(&mut self, pending: &Received, applied: Applied, now: Instant) {
        self.seen(applied.zxid);
        match applied.result {
            Ok(response) => self.reply(pending, Ok(response), now),
            Err(code @ ErrorCode::SessionExpired) => {
                self.record_answer(pending, None, Some(code));
                self.over(EndReason::Told(CloseReason::SessionEnded));
            }
            Err(code @ ErrorCode::SessionMoved) => {
                self.record_answer(pending, None, Some(code));
                self.over(EndReason::Told(CloseReason::SessionMoved));
            }
            Err(code) => self.reply(pending, Err(code), now),
        }
    }

    pub(super) fn seen(&mut self, zxid: Zxid) {
        self.last_zxid = self.last_zxid.max(zxid);
    }

    pub(super) fn reply(&mut self, pending: &Received, result: Result<Response, ErrorCode>, now: Instant) {
        let (body, err) = match result {
            Ok(body) => (Some(body), None),
            Err(code) => (None, Some(code)),
        };
        self.record_answer(pending, body.as_ref(), err);
        let (xid, zxid) = (pending.xid, self.last_zxid);
        self.write_reply(ReplyHeader { xid, zxid, err }, body.as_ref());
        let took = now.saturating_since(pending.received);
        self.shared.stats.latency.record(took);
        self.shared.context.metrics.request_seconds.record(took);
        let last = LastReply { opcode: pending.opcode, xid, zxid };
        self.peer.stats.replied(last, took, now.saturating_since(self.peer.accepted_at));
    }

    /// Encodes a reply. Replies to writes arrive at their own pace, under the bound of events.
    pub(super) fn write_reply(&mut self, header: ReplyHeader, body: Option<&Response>) {
        if decides!("output-is-full", self.output.len() >= limits::WRITE_BACKLOG_MAX_BYTES) {
            self.over(EndReason::Slow("too many bytes were unread"));
            return;
        }
        let before = self.output.len();
        encode::reply(header, body, &mut self.output);
        busy::spend(encoding(body), (self.output.len() - before) as u64);
        self.count_sent();
    }

    /// Appends an event. Events arrive whether or not the client reads, so this bounds the unread bytes.
    pub(super) fn write_event(&mut self, frame: &Bytes) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        if decides!("reply-exceeds-output", self.output.len() + frame.len() > limits::WRITE_BACKLOG_MAX_BYTES)
        {
            self.over(EndReason::Slow("too many bytes were unread"));
            return;
        }
        busy::spend(Work::Event, 1);
        self.seen(zxid_of(frame));
        self.output.extend_from_slice(frame);
        self.count_sent();
    }

    fn count_sent(&self) {
        self.peer.stats.sent.fetch_add(1, Relaxed);
        self.shared.stats.sent.fetch_add(1, Relaxed);
        self.shared.context.metrics.packets_sent_total.inc();
    }
}

/// Returns the work category of a reply: names are collected individually, data is copied.
fn encoding(body: Option<&Response>) -> Work {
    match body {
        Some(Response::Children(_) | Response::Children2(..) | Response::Multi(_) | Response::Report(_)) => {
            Work::EncodedByte
        }
        _ => Work::LogByte,
    }
}

/// Reads the zxid of an encoded frame, after length and xid.
fn zxid_of(frame: &Bytes) -> Zxid {
    let zxid = frame.get(8..).and_then(|rest| rest.first_chunk::<8>());
    Zxid(zxid.map_or(0, |bytes| i64::from_be_bytes(*bytes)))
}

impl Conversation {
    /// Returns, once, the reason for the end; `output` then holds the last bytes. `None` while the
    /// conversation continues.
    pub(in crate::node::zk) fn take_end(&mut self) -> Option<EndReason> {
        match &mut self.phase {
            Phase::Over(end) => Some(std::mem::replace(end, EndReason::Finished)),
            Phase::Finishing if self.queue.is_empty() => Some(EndReason::Finished),
            Phase::Open | Phase::Moved | Phase::Finishing => None,
        }
    }

    /// Returns the reason if the conversation was ended from outside.
    pub(in crate::node::zk) fn take_broken_off(&mut self) -> Option<EndReason> {
        matches!(self.phase, Phase::Over(_)).then(|| self.take_end()).flatten()
    }

    pub(super) fn over(&mut self, end: EndReason) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(end);
            self.record_unanswered();
            self.queue.clear();
        }
    }

    pub(super) fn told_to_close(&mut self, reason: CloseReason) {
        match (reason, &self.phase) {
            (
                CloseReason::NotServing
                | CloseReason::Shutdown
                | CloseReason::Writable
                | CloseReason::HalfOpen,
                _,
            ) => self.over(EndReason::Told(reason)),
            // A client without open requests is closed at its next frame, as in ZooKeeper. Closed now, it
            // would reconnect at once, and two programs that share a session would take it from each other
            // without end.
            (CloseReason::SessionMoved, Phase::Open)
                if decides!("moved-client-stays-unaware", self.may_stay_unaware()) =>
            {
                self.phase = Phase::Moved;
                self.shared.context.replica.watches.lock().leave(self.peer.id);
            }
            // Closed without a reply, as in ZooKeeper: a live client finds its session again by a new
            // connection, and clients do not expect the error SessionMoved of a server that they have not
            // left.
            (CloseReason::SessionMoved, _) => self.over(EndReason::Told(reason)),
            (CloseReason::Leaving | CloseReason::Rebalanced, Phase::Open | Phase::Moved) => {
                if self.queue.is_empty() && self.output.is_empty() {
                    self.over(EndReason::Told(reason));
                } else {
                    self.phase = Phase::Finishing;
                }
            }
            // Earlier requests still get their replies: closeSession itself may be among them.
            (CloseReason::SessionEnded, Phase::Open | Phase::Moved) => self.phase = Phase::Finishing,
            (CloseReason::Leaving | CloseReason::Rebalanced | CloseReason::SessionEnded, _) => {}
        }
    }

    /// Returns whether a moved session's client may learn of the move later: the client waits for no reply,
    /// and the session keeps its whole timeout, even if the new connection is gone already.
    fn may_stay_unaware(&self) -> bool {
        self.queue.is_empty() && self.pings.len() == 0 && self.disconnect_grace_ms == 0
    }
}

/// Number of first requests, possibly the only requests of a connection.
const FIRST_REQUESTS: u8 = 2;

impl Conversation {
    /// Counts a request, up to the first few.
    pub(super) fn record_first_requests(&mut self) {
        if self.first_requests < FIRST_REQUESTS {
            self.first_requests += 1;
            self.may_rest = true;
        }
    }

    /// Returns whether the client has sent more than its first requests.
    pub(super) fn is_at_work(&self) -> bool {
        self.first_requests >= FIRST_REQUESTS
    }

    /// Returns, once per idle period, whether the client has sent pings, or its first requests, and waits for
    /// no reply: a client with open requests sends no pings.
    pub(in crate::node::zk) fn has_come_to_rest(&mut self) -> bool {
        std::mem::take(&mut self.may_rest) && self.queue.is_empty() && self.pings.len() == 0
    }

    /// Frees empty buffers. The next request allocates new ones.
    pub(in crate::node::zk) fn rest(&mut self, inbox: &mut Inbox) {
        self.queue.rest();
        inbox.rest();
        if self.messages.is_empty() {
            self.messages = VecDeque::new();
        }
        if self.output.is_empty() {
            self.output = BytesMut::new();
        }
    }
}
