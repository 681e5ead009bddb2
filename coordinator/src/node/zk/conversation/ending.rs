//! End of a conversation: at once, or after the reply to the last request.
//!
//! Invariant: the client receives no reason. It learns of the end by the last reply, or by the closed
//! connection.

use super::super::end_reason::EndReason;
use super::{Conversation, Phase};
use crate::node::delivery::outbox::CloseReason;
use rowlock_env::decides;

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
