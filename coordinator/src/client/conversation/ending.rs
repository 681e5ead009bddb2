//! How a conversation ends: at once, or when what was asked is answered. Must never do: say why to the client, who learns
//! it from the last reply or not at all.

use rowlock_proto::ErrorCode;

use super::super::end::End;
use super::super::outbox::CloseReason;
use super::{Conversation, Phase};

impl Conversation {
    /// Why the conversation is over, if it is; what `output` holds is then the last of it. Asked for once.
    pub(in crate::client) fn take_end(&mut self) -> Option<End> {
        match &mut self.phase {
            Phase::Over(end) => Some(std::mem::replace(end, End::Finished)),
            Phase::Finishing if self.queue.is_empty() => Some(End::Finished),
            Phase::Open | Phase::Moved | Phase::Finishing => None,
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
            (CloseReason::Leaving, Phase::Open | Phase::Moved) => {
                if self.queue.is_empty() && self.output.is_empty() {
                    self.over(End::Told(reason));
                } else {
                    self.phase = Phase::Finishing;
                }
            }
            // What was asked before the end is still answered: among it may be closeSession itself.
            (CloseReason::SessionEnded, Phase::Open | Phase::Moved) => self.phase = Phase::Finishing,
            (CloseReason::SessionMoved, Phase::Open) => {
                self.phase = Phase::Moved;
                self.queue.refuse_reads(ErrorCode::SessionMoved);
                self.shared.context.replica.watches.lock().leave(self.peer.id);
            }
            (CloseReason::Leaving | CloseReason::SessionEnded | CloseReason::SessionMoved, _) => {}
        }
    }
}
