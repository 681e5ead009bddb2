//! Reports for clients, and operations of superusers. A task builds a report from the state at the request's
//! turn; the conversation forwards an operation at its turn.
//!
//! Invariant: the events of all that the report shows are in `output` before its reply.

use rowlock_env::time::Instant;

use super::Conversation;
use crate::node::admin::{Ask, Reader};
use crate::node::delivery::outbox::Inbox;

impl Conversation {
    /// Forwards each operation whose turn has come.
    pub(super) fn begin_operation(&mut self) {
        while let Some((tag, operation)) = self.queue.begin_operation() {
            let ask = Ask { wanted: operation, reply_to: self.peer.outbox.clone(), tag };
            if let Err(code) = self.shared.context.admin.operate(ask) {
                self.queue.reported(tag, Err(code));
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
            let (who, session) = (self.identities.to_vec(), self.attached.session);
            let reader = Reader { who, session, address: self.peer.addr.ip() };
            let ask = Ask { wanted: question, reply_to: self.peer.outbox.clone(), tag };
            if let Err(code) = self.shared.context.reports.report(frozen, ask, reader) {
                self.queue.reported(tag, Err(code));
            }
            answered += self.answer_settled(now);
        }
        answered
    }
}
