//! A client asks for a report: it is made by a task, of the state as it is when the question's turn has come.
//!
//! Invariant: the events of all that the report shows are in `output` before its reply.

use rowlock_env::time::Instant;

use super::Conversation;
use crate::delivery::outbox::Inbox;
use crate::report::Reader;

impl Conversation {
    /// Has the report made whose turn has come, if it has. Gives how many replies were made on the way.
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
            let reader = Reader { who: self.identities.to_vec(), session: self.attached.session };
            let (reports, reply_to) = (&self.shared.context.reports, self.peer.outbox.clone());
            if let Err(refusal) = reports.make(frozen, question, reader, tag, reply_to) {
                self.queue.reported(tag, Err(refusal.code()));
            }
            answered += self.answer_settled(now);
        }
        answered
    }
}
