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
        let Fact::Client { client, at, what: ClientFact::Asked { kind, outcome } } = fact else {
            return Ok(());
        };
        let what = match outcome {
            Ok(code) if *code == kind.refusal() => return Ok(()),
            Ok(Some(ErrorCode::QuotaExceeded)) if !self.has_room => return Ok(()),
            Err(()) if self.has_faults => return Ok(()),
            Ok(Some(code)) => format!("was refused it with {code:?}"),
            Ok(None) => "no node refused the oversized request".to_owned(),
            Err(()) => "had no answer, although nothing has gone wrong".to_owned(),
        };
        Err(format!("client {} sent the largest request of {kind:?} until {at}, and {what}", client.0))
    }
}
