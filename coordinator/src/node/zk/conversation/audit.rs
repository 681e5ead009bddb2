//! Audit records and slow-request reports of a conversation. Must never change a reply.

use rowlock_env::time::Instant;
use rowlock_metrics::Stage;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, Request};

use super::super::pending::Received;
use super::super::shared::Shared;
use super::Conversation;
use crate::node::audit::{AuditRecord, Client, Event, Note, OK};
use crate::node::delivery::outbox::Answer;
use crate::node::delivery::registry::ClientConnection;
use crate::node::slow::SlowRequest;

impl Conversation {
    /// Collects the request's fields for the record that follows the reply.
    pub(super) fn audit_note(&self, request: &Request) -> Option<Box<Note>> {
        let client = || self.client();
        Note::of(request, client, &self.shared.context.audit)
    }

    fn client(&self) -> Client {
        Client::new(&self.identities, self.attached.session, self.peer.addr)
    }

    pub(super) fn record_answer(&self, pending: &Received, body: Option<&Response>, err: Option<ErrorCode>) {
        if let Some(note) = &pending.note {
            note.answered(body, err, &self.shared.context.audit);
        }
    }

    /// Records begun requests that this connection will not answer.
    pub(in crate::node::zk) fn record_unanswered(&mut self) {
        for note in self.queue.take_notes() {
            note.unanswered(&self.shared.context.audit);
        }
    }

    /// Records an attempt to authenticate.
    pub(super) fn record_auth(&self, detail: &str, result: Result<(), &str>) {
        let (event, result) = (Event::Auth, result.err().unwrap_or(OK));
        let audit = &self.shared.context.audit;
        if audit.wants(event) {
            let (client, detail) = (self.client(), &crate::node::audit::text(detail));
            audit.record(&AuditRecord { detail, result, ..AuditRecord::new(event, "auth", client) });
        }
    }

    /// Records a request that was refused unread for lack of authentication.
    pub(super) fn record_barred(&self, request: &Request) {
        if let Some(note) = self.audit_note(request) {
            let err = Some(ErrorCode::SessionClosedRequireSaslAuth);
            note.answered(None, err, &self.shared.context.audit);
        }
    }
}

/// Records a TLS handshake with a client certificate, or a refused one.
pub(in crate::node::zk) fn record_tls(shared: &Shared, peer: &ClientConnection, refused: Option<&str>) {
    let audit = &shared.context.audit;
    if !audit.wants(Event::Auth) || (refused.is_none() && peer.proven.get().is_none()) {
        return;
    }
    let proven = peer.proven.get().map(|identities| identities.to_vec()).unwrap_or_default();
    let client = Client::new(&proven, rowlock_proto::SessionId::NONE, peer.addr);
    let (detail, result) = (refused.unwrap_or_default(), if refused.is_some() { "Refused" } else { OK });
    audit.record(&AuditRecord { detail, result, ..AuditRecord::new(Event::Auth, "tls", client) });
}

impl Conversation {
    /// Measures the outbox delay of the first result of a burst.
    pub(super) fn measure_outbox(&self, answer: &Answer, now: Instant, is_first: &mut bool) {
        if std::mem::take(is_first)
            && let Some(timeline) = &answer.timeline
        {
            let waited = now.saturating_since(timeline.answered);
            self.shared.context.metrics.stage_seconds.record(Stage::Outbox, waited);
        }
    }

    pub(super) fn log_slow_write(&self, pending: &Received, answer: &Answer, now: Instant) {
        if self.is_slow(pending, now) {
            let timeline = answer.timeline.as_ref();
            self.shared.context.slow.log_request(&SlowRequest { timeline, ..self.answered(pending, now) });
        }
    }

    /// Reports a slow read. A read waits only for the client's earlier requests.
    pub(super) fn log_slow_read(&self, pending: &Received, request: &Request, now: Instant) {
        if self.is_slow(pending, now) {
            let path = crate::node::audit::paths(request).first().copied();
            self.shared.context.slow.log_request(&SlowRequest { path, ..self.answered(pending, now) });
        }
    }

    fn is_slow(&self, pending: &Received, now: Instant) -> bool {
        self.shared.context.slow.is_slow(now.saturating_since(pending.received))
    }

    fn answered<'a>(&self, pending: &Received, now: Instant) -> SlowRequest<'a> {
        SlowRequest {
            op: pending.opcode.as_str(),
            path: None,
            timeline: None,
            session: self.attached.session,
            client: self.peer.addr,
            trace: None,
            received: pending.received,
            replied: now,
        }
    }
}
