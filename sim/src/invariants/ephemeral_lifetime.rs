//! ephemeral-lifetime: an ephemeral znode exists only while its session does. A session that a node reports
//! to an operator as ended has ended. `cluster/session_expiry.rs` checks in true time when a session may
//! expire.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::SessionId;

use super::Invariant;
use crate::history::Fact;
use crate::history::client::ClientFact;

/// Ephemeral znodes by session, and the session of each.
#[derive(Default)]
pub struct EphemeralLifetime {
    sessions: BTreeMap<SessionId, BTreeSet<String>>,
    owners: BTreeMap<String, SessionId>,
}

impl Invariant for EphemeralLifetime {
    fn name(&self) -> &'static str {
        "ephemeral-lifetime"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::SessionOpened { session, .. } => {
                let before = self.sessions.insert(*session, BTreeSet::new());
                return before.map_or(Ok(()), |_| Err(format!("session {session} was opened twice")));
            }
            Fact::Client { what: ClientFact::HasEnded { session }, .. }
                if self.sessions.contains_key(session) =>
            {
                return Err(format!("session {session} lives, and an operator was told that it has ended"));
            }
            Fact::SessionAttached { session, .. } if !self.sessions.contains_key(session) => {
                return Err(format!("dead session {session} was attached"));
            }
            Fact::SessionEnded { session, .. } => {
                let ephemerals =
                    self.sessions.remove(session).ok_or(format!("dead session {session} ended again"))?;
                if let Some(path) = ephemerals.first() {
                    return Err(format!("{path} outlived its session {session}"));
                }
            }
            Fact::EphemeralCreated { path, session } => {
                let owner = self
                    .sessions
                    .get_mut(session)
                    .ok_or(format!("{path} belongs to dead session {session}"))?;
                owner.insert(path.clone());
                self.owners.insert(path.clone(), *session);
            }
            Fact::Deleted { path } => {
                if let Some(owner) = self.owners.remove(path).and_then(|owner| self.sessions.get_mut(&owner))
                {
                    owner.remove(path);
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
    use rowlock_state::outcome::SessionEnd;

    use super::super::check_history;
    use super::*;
    use crate::history::Millis;

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
        assert!(check_history(EphemeralLifetime::default(), &facts).unwrap_err().contains("outlived"));
    }

    #[test]
    fn a_session_that_outlives_its_end_by_an_operator_is_caught() {
        let what = ClientFact::HasEnded { session: SESSION };
        let told = Fact::Client { client: Default::default(), at: Default::default(), what };
        let ended = ended(SessionEnd::Ended, 1);
        assert_eq!(
            check_history(EphemeralLifetime::default(), &[opened(), ended.clone(), told.clone()]),
            Ok(())
        );
        assert!(
            check_history(EphemeralLifetime::default(), &[opened(), told, ended])
                .unwrap_err()
                .contains("lives")
        );
    }

    #[test]
    fn an_ephemeral_of_a_dead_session_is_caught() {
        let facts = [opened(), ended(SessionEnd::Closed, 1), created()];
        assert!(check_history(EphemeralLifetime::default(), &facts).unwrap_err().contains("dead session"));
    }

    #[test]
    fn a_deleted_ephemeral_does_not_outlive_anything() {
        let facts =
            [opened(), created(), Fact::Deleted { path: "/e".to_owned() }, ended(SessionEnd::Closed, 1)];
        assert_eq!(check_history(EphemeralLifetime::default(), &facts), Ok(()));
    }
}
