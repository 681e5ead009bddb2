//! restored-cluster: a new cluster, created from the backup or the last node of an old cluster, reuses no
//! zxid (and so no fencing token) and no session id of the old cluster. No old session lives in the new
//! cluster. The new cluster opens no session while a client believes in a session of the old one, as long as
//! the clocks' rates are within their bound.
//!
//! `crate::cluster::rebirth` compares the new cluster's first state with the backup or the last node.

use std::collections::BTreeSet;

use rowlock_proto::{SessionId, Zxid};

use super::super::Invariant;
use crate::history::Fact;
use crate::history::client::ClientFact;

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
        Ok(())
    }

    fn opened(&mut self, session: SessionId) -> Result<(), String> {
        if self.former.contains(&session) || !self.sessions.insert(session) {
            return Err(format!("session {session} was opened, and there has been one of this id"));
        }
        Ok(())
    }
}

impl Invariant for RestoredCluster {
    fn name(&self) -> &'static str {
        "restored-cluster"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::NewLife(new) => self.begins(new.floor),
            Fact::Committed { zxid } => {
                self.last = self.last.max(*zxid);
                Ok(())
            }
            Fact::SessionOpened { session, .. } => self.opened(*session),
            Fact::SessionAttached { session, .. }
            | Fact::SessionEnded { session, .. }
            | Fact::EphemeralCreated { session, .. }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rowlock_proto::NodeId;
    use rowlock_state::command::Attachment;
    use rowlock_world::time::Nanos;

    use super::super::super::check_history;
    use super::*;
    use crate::history::client::ClientId;
    use crate::history::node::Position;
    use crate::history::{Index, Millis, NewLife};

    fn new_life(floor: i64) -> Fact {
        let beginning = Position { term: 0, leader: NodeId(0), index: Index(1) };
        Fact::NewLife(Arc::new(NewLife { beginning, floor: Zxid(floor), begins_with: Vec::new() }))
    }

    fn opened(session: i64) -> Fact {
        let (session, attachment) = (SessionId(session), Attachment(1));
        Fact::SessionOpened { session, attachment, timeout_ms: 1_000, at: Millis(1) }
    }

    fn attached(session: i64) -> Fact {
        let (session, attachment) = (SessionId(session), Attachment(2));
        Fact::SessionAttached { session, attachment, timeout_ms: 1_000, at: Millis(1) }
    }

    fn alive(session: i64) -> Fact {
        let what = ClientFact::Alive { session: SessionId(session), for_ms: 1 };
        Fact::Client { client: ClientId(0), at: Nanos(1), what }
    }

    fn committed(zxid: i64) -> Fact {
        Fact::Committed { zxid: Zxid(zxid) }
    }

    fn checker() -> RestoredCluster {
        RestoredCluster::new(true)
    }

    #[test]
    fn a_new_cluster_goes_on_beyond_all_that_the_old_one_has_given() {
        let restored = [committed(7), new_life(8), committed(9), new_life(10)];
        check_history(checker(), &restored).unwrap();
        assert!(check_history(checker(), &[committed(7), new_life(7)]).is_err());
        assert!(
            check_history(checker(), &[new_life(8), new_life(8)]).is_err(),
            "nothing was committed in between"
        );
    }

    #[test]
    fn no_session_of_the_old_cluster_lives_in_the_new_one() {
        check_history(checker(), &[opened(1), attached(1), new_life(8), opened(2), attached(2)]).unwrap();
        assert!(check_history(checker(), &[opened(1), new_life(8), attached(1)]).is_err());
        assert!(check_history(checker(), &[opened(1), new_life(8), opened(1)]).is_err());
    }

    #[test]
    fn a_session_beside_a_belief_in_an_old_one_is_caught() {
        check_history(checker(), &[opened(1), new_life(8), alive(1), opened(2), alive(2)]).unwrap();
        let late = [opened(1), new_life(8), opened(2), alive(1)];
        assert!(check_history(checker(), &late).is_err());
        check_history(RestoredCluster::new(false), &late).unwrap();
    }
}
