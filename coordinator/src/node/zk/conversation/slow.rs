//! Slow-request reports of a conversation. Must never change a reply.

use rowlock_env::time::Instant;
use rowlock_metrics::Stage;
use rowlock_proto::Request;

use super::super::pending::Received;
use super::Conversation;
use crate::node::delivery::outbox::Answer;
use crate::node::slow::SlowRequest;

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
