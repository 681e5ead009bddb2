//! session-order: a command sent over a connection that the session has left takes no effect.
//! `cluster/monotonic_reads.rs` checks the reads of a session.

use std::collections::BTreeMap;

use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;

use super::Invariant;
use crate::history::Fact;

/// Current attachment of each session; no entry after the session's end.
#[derive(Default)]
pub struct SessionOrder {
    attachments: BTreeMap<SessionId, Attachment>,
}

impl Invariant for SessionOrder {
    fn name(&self) -> &'static str {
        "session-order"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::SessionOpened { session, attachment, .. } => {
                self.attachments.insert(session, attachment);
            }
            Fact::SessionAttached { session, attachment, .. } => {
                let former = self.attachments.insert(session, attachment);
                if former.is_some_and(|former| attachment <= former) {
                    return Err(format!("session {session} was attached as {attachment:?} after {former:?}"));
                }
            }
            Fact::SessionEnded { session, .. } => {
                self.attachments.remove(&session);
            }
            Fact::Answered { session, attachment, refused: None } => match self.attachments.get(&session) {
                None => return Err(format!("a command of dead session {session} took effect")),
                Some(current) if *current != attachment => {
                    return Err(format!(
                        "a command of {attachment:?} took effect, session {session} is at {current:?}"
                    ));
                }
                Some(_) => {}
            },
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::ErrorCode;
    use rowlock_state::outcome::SessionEnd;

    use super::super::check_history;
    use super::*;
    use crate::history::Millis;

    const SESSION: SessionId = SessionId(1);

    fn opened() -> Fact {
        Fact::SessionOpened { session: SESSION, attachment: Attachment(1), timeout_ms: 100, at: Millis(0) }
    }

    fn attached(to: u64) -> Fact {
        Fact::SessionAttached { session: SESSION, attachment: Attachment(to), timeout_ms: 100, at: Millis(0) }
    }

    fn answered(attachment: u64, refused: Option<ErrorCode>) -> Fact {
        Fact::Answered { session: SESSION, attachment: Attachment(attachment), refused }
    }

    #[test]
    fn an_effect_of_a_former_connections_command_is_caught() {
        assert!(check_history(SessionOrder::default(), &[opened(), attached(2), answered(1, None)]).is_err());
        let refused = Some(ErrorCode::SessionMoved);
        assert_eq!(
            check_history(SessionOrder::default(), &[opened(), attached(2), answered(1, refused)]),
            Ok(())
        );
    }

    #[test]
    fn a_command_of_a_dead_session_that_takes_effect_is_caught() {
        let ended = Fact::SessionEnded { session: SESSION, end: SessionEnd::Closed, at: Millis(1) };
        assert!(check_history(SessionOrder::default(), &[opened(), ended, answered(1, None)]).is_err());
    }

    #[test]
    fn an_attachment_that_does_not_grow_is_caught() {
        assert!(check_history(SessionOrder::default(), &[opened(), attached(2), attached(2)]).is_err());
    }
}
