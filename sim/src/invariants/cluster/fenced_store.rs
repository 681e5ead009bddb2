//! fenced-store: a store with a check of tokens never accepts a write of a former holder after a write of the
//! successor, and refuses no other write. A write of a znode with a fence takes effect only while the token
//! holds the lock.

use std::collections::BTreeMap;

use rowlock_proto::FencingToken;

use super::super::Invariant;
use crate::history::client::{ClientFact, Store, fence_of};
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

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        if let Fact::Logged(logged) = fact
            && logged.result.is_ok()
            && let Some((lock, token)) = logged.op.paths().into_iter().find_map(fence_of)
            && !book.is_held(lock, token)
        {
            return Err(format!("{:?} ran while {token} did not hold {lock:?}", logged.op));
        }
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
