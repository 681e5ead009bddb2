//! A client asks for a report, or a superuser wants a node to do something. A report is made by a task, of
//! the state at the question's turn; an operation is passed on at its turn.
//!
//! Invariant: the events of all that the report shows are in `output` before its reply.

use rowlock_env::time::Instant;
use rowlock_proto::ErrorCode;

use super::Conversation;
use crate::delivery::outbox::Inbox;
use crate::operations::Ask;
use crate::report::{Requester, Viewer};

impl Conversation {
    /// Passes the operation on that is next in line, if one is.
    pub(super) fn begin_operation(&mut self) {
        while let Some((tag, operation)) = self.queue.begin_operation() {
            let ask = Ask { operation, reply_to: self.peer.outbox.clone(), tag };
            if self.shared.context.operations.try_send(ask).is_err() {
                self.queue.reported(tag, Err(ErrorCode::ThrottledOp));
            }
        }
    }

    /// Has the report made that is next in line, if one is. Returns how many replies were made on the way.
    pub(super) fn begin_report(&mut self, inbox: &mut Inbox, now: Instant) -> usize {
        let mut answered = 0;
        while self.queue.report_is_next() && !self.is_full() {
            let replica = self.shared.context.replica.clone();
            let state = replica.state.read();
            self.take_messages(inbox, now);
            // What came may have ended the conversation.
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
