//! Reports for clients, and operations of superusers. A task builds a report from the state at the request's
//! turn; the conversation forwards an operation at its turn.
//!
//! Invariant: the events of all that the report shows are in `output` before its reply.

use rowlock_env::time::Instant;
use rowlock_proto::ErrorCode;

use super::Conversation;
use crate::delivery::outbox::Inbox;
use crate::operations::Ask;
use crate::report::{Requester, Viewer};

impl Conversation {
    /// Forwards each operation whose turn has come.
    pub(super) fn begin_operation(&mut self) {
        while let Some((tag, operation)) = self.queue.begin_operation() {
            let ask = Ask { operation, reply_to: self.peer.outbox.clone(), tag };
            if self.shared.context.operations.try_send(ask).is_err() {
                self.queue.reported(tag, Err(ErrorCode::ThrottledOp));
            }
        }
    }

    /// Starts each report whose turn has come. Returns the number of replies on the way.
    pub(super) fn begin_report(&mut self, inbox: &mut Inbox, now: Instant) -> usize {
        let mut answered = 0;
        while self.queue.report_is_next() && !self.is_full() {
            let replica = self.shared.context.replica.clone();
            let state = replica.state.read();
            self.take_messages(inbox, now);
            // The messages may have ended the conversation.
            let Some((tag, question)) = self.queue.begin_report() else { break };
            self.seen(state.last_zxid());
            let frozen = state.freeze();
            drop(state);
            let party = Requester::Sessions(self.peer.addr.ip());
            let reader = Viewer { who: self.identities.to_vec(), session: self.attached.session };
            let (reports, reply_to) = (&self.shared.context.reports, self.peer.outbox.clone());
            if let Err(refusal) = reports.make(frozen, question, (reader, party), tag, reply_to) {
                self.queue.reported(tag, Err(refusal.code()));
            }
            answered += self.answer_settled(now);
        }
        answered
    }
}
