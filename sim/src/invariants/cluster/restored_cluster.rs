//! restored-cluster: a new cluster, created from the backup or the last node of an old cluster, reuses no
//! zxid (and so no fencing token) and no session id of the old cluster. No old session lives in the new
//! cluster. The new cluster opens no session while a client believes in a session of the old one, as long as
//! the clocks' rates are within their bound.
//!
//! `crate::cluster::rebirth` compares the new cluster's first state with the backup or the last node.

use std::collections::BTreeSet;
use std::time::Duration;

use rowlock_proto::{SessionId, Zxid};
use rowlock_world::time::Nanos;

use super::super::Invariant;
use super::session_expiry::LEFT_PERCENT;
use crate::history::client::ClientFact;
use crate::history::{Book, Fact};

/// Zxids and sessions that the clusters so far have used.
#[derive(Default)]
pub struct RestoredCluster {
    has_bounded_clocks: bool,
    /// Largest zxid of all clusters.
    last: Zxid,
    /// First zxid of the present cluster.
    floor: Zxid,
    /// Sessions of the present cluster.
    sessions: BTreeSet<SessionId>,
    /// Sessions of former clusters.
    former: BTreeSet<SessionId>,
    now: Nanos,
    /// Time until which clients believe in sessions of the present cluster, by the fastest clock within the
    /// bound.
    believed: Nanos,
    /// The same for sessions of former clusters.
    believed_former: Nanos,
}

impl RestoredCluster {
    /// Creates the checker for a run with or without bounded clocks.
    pub fn new(has_bounded_clocks: bool) -> Self {
        RestoredCluster { has_bounded_clocks, ..Self::default() }
    }

    fn begins(&mut self, floor: Zxid) -> Result<(), String> {
        let last = self.last.max(self.floor);
        if floor <= last {
            return Err(format!("the new cluster goes on at zxid {floor}, and the old one has given {last}"));
        }
        self.floor = floor;
        self.former.append(&mut self.sessions);
        self.believed_former = self.believed_former.max(self.believed);
        Ok(())
    }

    fn opened(&mut self, session: SessionId) -> Result<(), String> {
        if self.former.contains(&session) || !self.sessions.insert(session) {
            return Err(format!("session {session} was opened, and there has been one of this id"));
        }
        if self.has_bounded_clocks && self.now < self.believed_former {
            return Err(format!(
                "session {session} was opened at {}, and until {} a client believes in a session of the old cluster",
                self.now, self.believed_former
            ));
        }
        Ok(())
    }

    fn believes(&mut self, session: SessionId, left: Duration) {
        let is_former = self.former.contains(&session);
        let until = if is_former { &mut self.believed_former } else { &mut self.believed };
        *until = (*until).max(self.now + left * LEFT_PERCENT / 100);
    }
}

impl Invariant for RestoredCluster {
    fn name(&self) -> &'static str {
        "restored-cluster"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        if let Fact::Client { what: ClientFact::Alive { session, for_ms }, .. } = fact {
            self.believes(*session, Duration::from_millis((*for_ms).into()));
        }
        match fact {
            Fact::NewLife(new) => self.begins(new.floor),
            Fact::Committed { zxid } => {
                self.last = self.last.max(*zxid);
                Ok(())
            }
            Fact::SessionOpened { session, .. } => self.opened(*session),
            Fact::SessionAttached { session, .. }
            | Fact::SessionEnded { session, .. }
            | Fact::Queued { session, .. }
            | Fact::Entitled { session, .. }
                if self.former.contains(session) =>
            {
                Err(format!("session {session} of the old cluster lives in the new one: {fact:?}"))
            }
            Fact::Client { client, what: ClientFact::Alive { session, .. }, at }
                if self.has_bounded_clocks && !self.sessions.is_empty() && self.former.contains(session) =>
            {
                Err(format!(
                    "client {} believes at {at} in session {session} of the old cluster, and the new one has \
                     opened sessions",
                    client.0
                ))
            }
            _ => Ok(()),
        }
    }
}
