//! Output of a conversation: replies in the order of their requests, and events between them. Must never
//! decide the content of a reply.

use bytes::Bytes;
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::time::Instant;
use rowlock_proto::response::{ReplyHeader, Response};
use rowlock_proto::{ErrorCode, Zxid, encode};
use rowlock_state::outcome::Applied;
use std::sync::atomic::Ordering::Relaxed;

use super::super::end_reason::EndReason;
use super::super::pending::Received;
use super::{Conversation, Phase};
use crate::limits;
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

    pub(super) fn count_sent(&self) {
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
