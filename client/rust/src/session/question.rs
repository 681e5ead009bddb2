//! [`Question`]: what a session knows of a question to one of its holds.

use rowlock_env::time::Instant;
use rowlock_proto::lock;

/// Request of another client for a held lock. Both texts come from the other client: print them as untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Question {
    /// Reason of the request.
    pub reason: String,
    /// Identity of the requester by the server's authentication, followed by the requester's own label.
    pub by: String,
    /// Time of the request: the leader's clock, milliseconds since 1970.
    pub asked_ms: i64,
    /// Time of the loss ([`crate::LostReason::Asked`]), unless the holder releases the lock before. `None`: a
    /// mere notice.
    pub deadline: Option<Instant>,
}

impl Question {
    /// Converts a notice received at `now`. A later question never moves an earlier deadline.
    pub(crate) fn told(question: &lock::QuestionNotice, before: Option<&Question>, now: Instant) -> Question {
        let left = question.left_ms.map(|left_ms| now + std::time::Duration::from_millis(left_ms.into()));
        let deadline = left.into_iter().chain(before.and_then(|before| before.deadline)).min();
        let lock::QuestionNotice { reason, by, asked_ms, .. } = question.clone();
        Question { reason, by, asked_ms, deadline }
    }
}
