//! fenced-store: a store with a check of tokens never accepts a write of a former holder after a write of the
//! successor, and refuses no other write.

use std::collections::BTreeMap;

use rowlock_proto::FencingToken;

use super::super::Invariant;
use crate::history::client::{ClientFact, Store};
use crate::history::{Book, Fact, Lock};

/// Highest token that each store has accepted.
#[derive(Default)]
pub struct FencedStore {
    taken: BTreeMap<Lock, FencingToken>,
}

impl Invariant for FencedStore {
    fn name(&self) -> &'static str {
        "fenced-store"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        let Fact::Client { client, what: ClientFact::Wrote { lock, token, store }, .. } = fact else {
            return Ok(());
        };
        let Store::Fenced { accepted } = store else { return Ok(()) };
        let highest = self.taken.entry(*lock).or_insert(*token);
        let is_old = token < highest;
        if is_old == *accepted {
            let did = if *accepted { "took" } else { "refused" };
            return Err(format!(
                "the store of {lock:?} {did} a write of client {} with {token}, and has taken {highest}",
                client.0
            ));
        }
        *highest = (*highest).max(*token);
        Ok(())
    }
}
