//! fenced-store: a store with a check of tokens never accepts a write of a former holder after a write of the
//! successor, and refuses no other write.

use std::collections::BTreeMap;

use rowlock_proto::FencingToken;

use super::super::Invariant;
use crate::history::client::{ClientFact, Store};
use crate::history::{Fact, Lock};

/// Highest token that each store has accepted.
#[derive(Default)]
pub struct FencedStore {
    taken: BTreeMap<Lock, FencingToken>,
}

impl Invariant for FencedStore {
    fn name(&self) -> &'static str {
        "fenced-store"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::client;
    use super::*;

    fn wrote(token: i64, store: Store) -> Fact {
        client(1, ClientFact::Wrote { lock: Lock(0), token: FencingToken(token), store })
    }

    #[test]
    fn an_accepted_old_token_or_a_refused_new_one_is_caught() {
        let fenced = |token, accepted| wrote(token, Store::Fenced { accepted });
        assert!(check_history(FencedStore::default(), &[fenced(5, true), fenced(4, true)]).is_err());
        assert!(check_history(FencedStore::default(), &[fenced(5, true), fenced(5, false)]).is_err());
        let fine = [fenced(5, true), fenced(5, true), fenced(4, false), fenced(6, true)];
        assert_eq!(check_history(FencedStore::default(), &fine), Ok(()));
        assert_eq!(
            check_history(FencedStore::default(), &[wrote(5, Store::Plain), wrote(4, Store::Plain)]),
            Ok(())
        );
    }
}
