//! How a conversation ends: at once, or when all requests are answered.
//!
//! Invariant: no reason is sent to the client. It learns of the end by the last reply, or by the connection
//! that closes.

use super::super::end_reason::EndReason;
use super::{Conversation, Phase};
use crate::delivery::outbox::CloseReason;

impl Conversation {
    /// Why the conversation is over, if it is; what `output` holds is then the last of it. Asked for once.
    pub(in crate::node::zk) fn take_end(&mut self) -> Option<EndReason> {
        match &mut self.phase {
            Phase::Over(end) => Some(std::mem::replace(end, EndReason::Finished)),
            Phase::Finishing if self.queue.is_empty() => Some(EndReason::Finished),
            Phase::Open | Phase::Moved | Phase::Finishing => None,
        }
    }

    /// Why the conversation was broken off from outside, if it was.
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
            // A client that asks for nothing is closed at its next frame, as ZooKeeper does. It would come
            // back at once, and two programs that share a session would take it from each other without end.
            (CloseReason::SessionMoved, Phase::Open) if self.may_stay_unaware() => {
                self.phase = Phase::Moved;
                self.shared.context.replica.watches.lock().leave(self.peer.id);
            }
            // Without an answer, as ZooKeeper does: a client that is still here finds its session again by a
            // new connection, and clients do not expect the error SessionMoved of a server that they have not
            // left.
            (CloseReason::SessionMoved, _) => self.over(EndReason::Told(reason)),
            (CloseReason::Leaving | CloseReason::Rebalanced, Phase::Open | Phase::Moved) => {
                if self.queue.is_empty() && self.output.is_empty() {
                    self.over(EndReason::Told(reason));
                } else {
                    self.phase = Phase::Finishing;
                }
            }
            // What was asked before the end is still answered: among it may be closeSession itself.
            (CloseReason::SessionEnded, Phase::Open | Phase::Moved) => self.phase = Phase::Finishing,
            (CloseReason::Leaving | CloseReason::Rebalanced | CloseReason::SessionEnded, _) => {}
        }
    }

    /// The session has moved, and it does no harm if the client does not know yet: it waits for no answer,
    /// and the session has its whole timeout, although the connection that it has moved to may be gone
    /// already.
    fn may_stay_unaware(&self) -> bool {
        self.queue.is_empty() && self.pings.len() == 0 && self.disconnect_grace_ms == 0
    }
}
