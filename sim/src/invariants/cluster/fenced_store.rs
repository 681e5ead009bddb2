//! fenced-store: a store with a fence accepts no write of a former holder after the successor's first write,
//! accepts the successor's only after the end of earlier ones, and refuses a token only after a larger one
//! was presented. A write of a znode with a fence takes effect only while the token holds the lock.

use std::collections::BTreeMap;

use rowlock_proto::FencingToken;

use super::super::Invariant;
use crate::history::client::{ClientFact, Store, fence_of};
use crate::history::{Book, Fact, Lock};

/// Largest tokens of each store.
#[derive(Default)]
pub struct FencedStore {
    presented: BTreeMap<Lock, FencingToken>,
    accepted: BTreeMap<Lock, FencingToken>,
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
        let highest = match store {
            Store::Plain => return Ok(()),
            Store::Presented | Store::Fenced { accepted: false } => &mut self.presented,
            Store::Fenced { accepted: true } => &mut self.accepted,
        };
        let highest = highest.entry(*lock).or_insert(*token);
        let fault = match store {
            Store::Fenced { accepted: true } if token < highest => format!("took {token} after {highest}"),
            Store::Fenced { accepted: false } if token >= highest => {
                format!("refused {token}, and was presented none above {highest}")
            }
            _ => String::new(),
        };
        if !fault.is_empty() {
            return Err(format!("the store of {lock:?} {fault}, from client {}", client.0));
        }
        *highest = (*highest).max(*token);
        Ok(())
    }
}
