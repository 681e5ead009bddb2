//! bounded: a node answers every allowed request, however large; in a run without faults every request gets
//! an answer.

use rowlock_proto::ErrorCode;

use super::super::Invariant;
use crate::history::client::ClientFact;
use crate::history::{Book, Fact};

pub struct Steady {
    has_faults: bool,
    has_room: bool,
}

impl Steady {
    /// Creates the checker. `has_faults`: the run has faults. `has_room`: no disk is ever full.
    pub fn new(has_faults: bool, has_room: bool) -> Self {
        Steady { has_faults, has_room }
    }
}

impl Invariant for Steady {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
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
            _ => Ok(()),
        }
    }
}
