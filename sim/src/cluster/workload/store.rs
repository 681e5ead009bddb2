//! Stores that the locks of a run protect, with their accepted tokens. The stores are outside of the cluster
//! and always up, like a database that knows only the locks' tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_proto::FencingToken;

use crate::history::Lock;
use crate::history::client::Store;

/// One store per lock. Clones share the stores.
#[derive(Clone, Debug)]
pub struct Stores {
    is_fenced: bool,
    highest: Arc<Mutex<BTreeMap<Lock, FencingToken>>>,
}

impl Stores {
    /// Creates empty stores. With `is_fenced` a store refuses tokens below its highest accepted token.
    pub fn new(is_fenced: bool) -> Self {
        Stores { is_fenced, highest: Arc::default() }
    }

    pub fn write(&self, lock: Lock, token: FencingToken) -> Store {
        if !self.is_fenced {
            return Store::Plain;
        }
        let mut highest = self.highest.lock();
        let highest = highest.entry(lock).or_insert(token);
        let accepted = token >= *highest;
        if accepted {
            *highest = token;
        }
        Store::Fenced { accepted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fenced_store_refuses_a_token_below_the_highest() {
        for (is_fenced, late) in [(true, Store::Fenced { accepted: false }), (false, Store::Plain)] {
            let stores = Stores::new(is_fenced);
            stores.write(Lock(0), FencingToken(7));
            assert_eq!(stores.clone().write(Lock(0), FencingToken(6)), late);
            assert_ne!(stores.write(Lock(1), FencingToken(6)), Store::Fenced { accepted: false });
        }
    }
}
