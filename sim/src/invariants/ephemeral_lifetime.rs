//! ephemeral-lifetime: an ephemeral znode exists only while its session does, and a session expires only
//! after its whole timeout without a sign of life.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::SessionId;
use rowlock_state::outcome::SessionEnd;

use super::Invariant;
use crate::history::{Fact, Millis};

struct Session {
    touched: Millis,
    timeout_ms: u32,
    ephemerals: BTreeSet<String>,
}

/// The living sessions.
#[derive(Default)]
pub struct EphemeralLifetime {
    sessions: BTreeMap<SessionId, Session>,
    owners: BTreeMap<String, SessionId>,
    /// Facts about the log carry no true times.
    is_timeless: bool,
}

impl EphemeralLifetime {
    /// For a cluster, in which session-expiry judges the times.
    pub fn timeless() -> Self {
        EphemeralLifetime { is_timeless: true, ..Self::default() }
    }
}

impl Invariant for EphemeralLifetime {
    fn name(&self) -> &'static str {
        "ephemeral-lifetime"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::SessionOpened { session, timeout_ms, at, .. } => {
                let new = Session { touched: *at, timeout_ms: *timeout_ms, ephemerals: BTreeSet::new() };
                if self.sessions.insert(*session, new).is_some() {
                    return Err(format!("session {session} was opened twice"));
                }
            }
            Fact::SessionAttached { session, timeout_ms, at, .. } => {
                let known =
                    self.sessions.get_mut(session).ok_or(format!("dead session {session} was attached"))?;
                (known.touched, known.timeout_ms) = (*at, *timeout_ms);
            }
            Fact::SessionTouched { session, at } => {
                if let Some(known) = self.sessions.get_mut(session) {
                    known.touched = *at;
                }
            }
            Fact::AllTouched { at } => self.sessions.values_mut().for_each(|known| known.touched = *at),
            Fact::SessionEnded { session, end, at } => {
                let ended =
                    self.sessions.remove(session).ok_or(format!("dead session {session} ended again"))?;
                if let Some(path) = ended.ephemerals.first() {
                    return Err(format!("{path} outlived its session {session}"));
                }
                let deadline = Millis(ended.touched.0 + i64::from(ended.timeout_ms));
                if *end == SessionEnd::Expired && *at < deadline && !self.is_timeless {
                    return Err(format!("session {session} expired at {at:?}, before {deadline:?}"));
                }
            }
            Fact::EphemeralCreated { path, session } => {
                let owner = self
                    .sessions
                    .get_mut(session)
                    .ok_or(format!("{path} belongs to dead session {session}"))?;
                owner.ephemerals.insert(path.clone());
                self.owners.insert(path.clone(), *session);
            }
            Fact::Deleted { path } => {
                if let Some(owner) = self.owners.remove(path).and_then(|owner| self.sessions.get_mut(&owner))
                {
                    owner.ephemerals.remove(path);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_state::command::Attachment;

    use super::super::judge;
    use super::*;

    const SESSION: SessionId = SessionId(1);

    fn opened() -> Fact {
        Fact::SessionOpened { session: SESSION, attachment: Attachment(1), timeout_ms: 100, at: Millis(0) }
    }

    fn ended(end: SessionEnd, at: i64) -> Fact {
        Fact::SessionEnded { session: SESSION, end, at: Millis(at) }
    }

    fn created() -> Fact {
        Fact::EphemeralCreated { path: "/e".to_owned(), session: SESSION }
    }

    #[test]
    fn an_ephemeral_that_outlives_its_session_is_caught() {
        let facts = [opened(), created(), ended(SessionEnd::Closed, 1)];
        assert!(judge(EphemeralLifetime::default(), &facts).unwrap_err().contains("outlived"));
    }

    #[test]
    fn an_ephemeral_of_a_dead_session_is_caught() {
        let facts = [opened(), ended(SessionEnd::Closed, 1), created()];
        assert!(judge(EphemeralLifetime::default(), &facts).unwrap_err().contains("dead session"));
    }

    #[test]
    fn an_expiry_before_the_timeout_is_caught() {
        let touched = Fact::SessionTouched { session: SESSION, at: Millis(50) };
        assert!(
            judge(
                EphemeralLifetime::default(),
                &[opened(), touched.clone(), ended(SessionEnd::Expired, 149)]
            )
            .is_err()
        );
        assert_eq!(
            judge(EphemeralLifetime::default(), &[opened(), touched, ended(SessionEnd::Expired, 150)]),
            Ok(())
        );
    }

    #[test]
    fn a_deleted_ephemeral_does_not_outlive_anything() {
        let facts =
            [opened(), created(), Fact::Deleted { path: "/e".to_owned() }, ended(SessionEnd::Closed, 1)];
        assert_eq!(judge(EphemeralLifetime::default(), &facts), Ok(()));
    }
}
