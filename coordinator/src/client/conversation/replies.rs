//! What a conversation writes: replies in the order of their requests, and events between them. Must never do: decide
//! what is written.

use bytes::Bytes;
use rowlock_env::time::Instant;
use rowlock_proto::response::{ReplyHeader, Response};
use rowlock_proto::{ErrorCode, Zxid, encode};
use rowlock_state::outcome::Applied;
use std::sync::atomic::Ordering::Relaxed;

use super::super::end::End;
use super::super::outbox::CloseReason;
use super::super::pending::Pending;
use super::super::stats::LastReply;
use super::super::write::{self, Form};
use super::{Conversation, Phase};
use crate::limits;

impl Conversation {
    pub(super) fn answer_write(&mut self, pending: &Pending, form: Form, applied: Applied, now: Instant) {
        self.seen(applied.zxid);
        match applied.result {
            Ok(outcome) => self.reply(pending, Ok(write::response(form, outcome)), now),
            Err(ErrorCode::SessionExpired) => self.over(End::Told(CloseReason::SessionEnded)),
            Err(code) => self.answer_error(pending, code, now),
        }
    }

    /// SessionMoved is the last reply: the client has gone elsewhere.
    pub(super) fn answer_error(&mut self, pending: &Pending, code: ErrorCode, now: Instant) {
        self.reply(pending, Err(code), now);
        if code == ErrorCode::SessionMoved {
            self.phase = Phase::Finishing;
            self.queue.clear();
        }
    }

    pub(super) fn seen(&mut self, zxid: Zxid) {
        self.last_zxid = self.last_zxid.max(zxid);
    }

    pub(super) fn reply(&mut self, pending: &Pending, result: Result<Response, ErrorCode>, now: Instant) {
        let (body, err) = match result {
            Ok(body) => (Some(body), None),
            Err(code) => (None, Some(code)),
        };
        let (xid, zxid) = (pending.xid, self.last_zxid);
        self.put_reply(ReplyHeader { xid, zxid, err }, body.as_ref());
        let took = now.saturating_since(pending.received);
        self.shared.stats.latency.record(took);
        self.shared.context.metrics.request_seconds.record(took);
        let last = LastReply { opcode: pending.opcode, xid, zxid };
        self.peer.stats.replied(last, took, now.saturating_since(self.peer.accepted_at));
    }

    pub(super) fn put_reply(&mut self, header: ReplyHeader, body: Option<&Response>) {
        encode::reply(header, body, &mut self.output);
        self.count_sent();
    }

    /// Events come whether or not the client reads, so here is the bound on what it may leave unread.
    pub(super) fn put_event(&mut self, frame: &Bytes) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        if self.output.len() + frame.len() > limits::WRITE_BACKLOG_MAX_BYTES {
            self.over(End::Slow("too many bytes were unread"));
            return;
        }
        self.output.extend_from_slice(frame);
        self.count_sent();
    }

    pub(super) fn count_sent(&self) {
        self.peer.stats.sent.fetch_add(1, Relaxed);
        self.shared.stats.sent.fetch_add(1, Relaxed);
        self.shared.context.metrics.packets_sent_total.inc();
    }
}
