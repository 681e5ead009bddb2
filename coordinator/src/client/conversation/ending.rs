//! How a conversation ends: at once, or when what was asked is answered. Must never do: say why to the client, who learns
//! it from the last reply or not at all.

use super::super::end::End;
use super::super::outbox::CloseReason;
use super::{Conversation, Phase};

impl Conversation {
    /// Why the conversation is over, if it is; what `output` holds is then the last of it. Asked for once.
    pub(in crate::client) fn take_end(&mut self) -> Option<End> {
        match &mut self.phase {
            Phase::Over(end) => Some(std::mem::replace(end, End::Finished)),
            Phase::Finishing if self.queue.is_empty() => Some(End::Finished),
            Phase::Open | Phase::Finishing => None,
        }
    }

    /// Why the conversation was broken off from outside, if it was.
    pub(in crate::client) fn take_broken_off(&mut self) -> Option<End> {
        matches!(self.phase, Phase::Over(_)).then(|| self.take_end()).flatten()
    }

    pub(super) fn over(&mut self, end: End) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(end);
            self.queue.clear();
        }
    }

    pub(super) fn told_to_close(&mut self, reason: CloseReason) {
        match (reason, &self.phase) {
            (CloseReason::NotServing | CloseReason::Shutdown | CloseReason::Writable, _) => {
                self.over(End::Told(reason));
            }
            // Without an answer, as ZooKeeper does: a client that is still here finds its session again by a new
            // connection, and clients do not expect the error SessionMoved of a server that they have not left.
            (CloseReason::SessionMoved, _) => self.over(End::Told(reason)),
            (CloseReason::Leaving, Phase::Open) => {
                if self.queue.is_empty() && self.output.is_empty() {
                    self.over(End::Told(reason));
                } else {
                    self.phase = Phase::Finishing;
                }
            }
            // What was asked before the end is still answered: among it may be closeSession itself.
            (CloseReason::SessionEnded, Phase::Open) => self.phase = Phase::Finishing,
            (CloseReason::Leaving | CloseReason::SessionEnded, _) => {}
        }
    }
}
