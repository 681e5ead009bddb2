//! ephemeral-lifetime: a session that a node reports to an operator as ended has ended, and a lease after the
//! answer to its `DELETE`. The oracle checks that an ephemeral znode exists only while its session does
//! (`sim/oracle/src/promises.rs`), and `cluster/session_expiry.rs` checks in true time when a session may
//! expire.

use std::collections::BTreeSet;

use rowlock_proto::SessionId;

use super::Invariant;
use crate::history::client::ClientFact;
use crate::history::{Book, Fact};

/// Sessions that the log has not ended.
#[derive(Default)]
pub struct EphemeralLifetime(BTreeSet<SessionId>);

impl Invariant for EphemeralLifetime {
    fn name(&self) -> &'static str {
        "ephemeral-lifetime"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::SessionOpened { session, .. } => drop(self.0.insert(*session)),
            Fact::SessionEnded { session, .. } => drop(self.0.remove(session)),
            Fact::Client { what: ClientFact::HasEnded { session }, .. } if self.0.contains(session) => {
                return Err(format!("session {session} lives, and a node has confirmed its end"));
            }
            _ => {}
        }
        Ok(())
    }
}
