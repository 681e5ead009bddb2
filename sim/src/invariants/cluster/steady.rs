//! bounded: a node answers every allowed request, however large; in a run without faults every request gets
//! an answer, and no requests of clients cost a leader its leadership.

use std::time::Duration;

use rowlock_proto::{ErrorCode, NodeId};
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::Fact;
use crate::history::client::ClientFact;
use crate::history::node::NodeFact;

/// Time for a starting cluster to elect its leader, and for clients to find the leader.
const UP_WITHIN: Duration = Duration::from_secs(3);

pub struct Steady {
    has_faults: bool,
    has_room: bool,
    leads: Option<(NodeId, u64)>,
    /// The simulation stops the nodes from this moment on.
    is_settled: bool,
}

impl Steady {
    /// Creates the checker. `has_faults`: the run has faults. `has_room`: no disk is ever full.
    pub fn new(has_faults: bool, has_room: bool) -> Self {
        Steady { has_faults, has_room, leads: None, is_settled: false }
    }

    fn leads(&mut self, node: NodeId, term: u64, at: Nanos) -> Result<(), String> {
        let before = self.leads.replace((node, term));
        match before.filter(|_| !self.has_faults && !self.is_settled && at > Nanos(0) + UP_WITHIN) {
            Some((old, before)) if before != term => Err(format!(
                "node {node} leads term {term} at {at} behind node {old} in term {before}, and nothing has gone wrong"
            )),
            _ => Ok(()),
        }
    }
}

impl Invariant for Steady {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Node { node, at, what: NodeFact::Leads { term } } => self.leads(*node, *term, *at),
            Fact::Client { client, at, what: ClientFact::Asked { kind, outcome } } => match outcome {
                Ok(code) if *code == kind.refusal() => Ok(()),
                Ok(Some(ErrorCode::QuotaExceeded)) if !self.has_room => Ok(()),
                Ok(Some(code)) => Err(format!(
                    "client {} sent the largest request of {kind:?}, and was refused it with {code:?} at {at}",
                    client.0
                )),
                Ok(None) => Err(format!(
                    "client {} sent a request of {kind:?} at {at}, and no node refused the oversized request",
                    client.0
                )),
                Err(()) if self.has_faults => Ok(()),
                Err(()) => Err(format!(
                    "client {} sent the largest request of {kind:?}, and had no answer at {at}; nothing has gone wrong",
                    client.0
                )),
            },
            Fact::Settled => {
                self.is_settled = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::client;
    use super::*;
    use crate::history::client::Large;

    fn leads(at: u64, node: u64, term: u64) -> Fact {
        Fact::Node { node: NodeId(node), at: Nanos::from_millis(at), what: NodeFact::Leads { term } }
    }

    #[test]
    fn a_leader_that_goes_although_nothing_has_gone_wrong_is_caught() {
        let coming_up = [leads(500, 1, 1), leads(900, 2, 2)];
        assert_eq!(check_history(Steady::new(false, true), &coming_up), Ok(()));
        let later = [&coming_up[..], &[leads(3_001, 1, 3)]].concat();
        assert!(
            check_history(Steady::new(false, true), &later).unwrap_err().contains("nothing has gone wrong")
        );
        assert_eq!(check_history(Steady::new(true, true), &later), Ok(()));
        let stopped = [&coming_up[..], &[Fact::Settled, leads(3_001, 1, 3)]].concat();
        assert_eq!(
            check_history(Steady::new(false, true), &stopped),
            Ok(()),
            "nodes are stopped one after another"
        );
    }

    #[test]
    fn a_refused_or_unanswered_large_request_is_caught() {
        let asked = |outcome| [client(1, ClientFact::Asked { kind: Large::Data, outcome })];
        for has_faults in [true, false] {
            let refused = asked(Ok(Some(ErrorCode::MarshallingError)));
            assert!(check_history(Steady::new(has_faults, true), &refused).is_err());
            assert_eq!(check_history(Steady::new(has_faults, true), &asked(Ok(None))), Ok(()));
            assert_eq!(check_history(Steady::new(has_faults, true), &asked(Err(()))).is_ok(), has_faults);
            let too_long = |outcome| [client(1, ClientFact::Asked { kind: Large::TooLong, outcome })];
            assert!(check_history(Steady::new(has_faults, true), &too_long(Ok(None))).is_err());
            let refused = too_long(Ok(Some(ErrorCode::BadArguments)));
            assert_eq!(check_history(Steady::new(has_faults, true), &refused), Ok(()));
        }
    }

    #[test]
    fn growing_writes_are_refused_only_while_a_disk_is_full() {
        let refused = |code| [client(1, ClientFact::Asked { kind: Large::Data, outcome: Ok(Some(code)) })];
        for has_room in [true, false] {
            let for_room = check_history(Steady::new(true, has_room), &refused(ErrorCode::QuotaExceeded));
            assert_eq!(for_room.is_err(), has_room);
            assert!(
                check_history(Steady::new(true, has_room), &refused(ErrorCode::MarshallingError)).is_err()
            );
        }
    }
}
