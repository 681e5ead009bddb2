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
