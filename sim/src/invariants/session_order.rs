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
