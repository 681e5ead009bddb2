//! fencing-monotonic: the tokens that the log grants for a lock strictly increase. `cluster/fenced_store.rs`
//! checks the writes that a protected store accepts.

use std::collections::BTreeMap;

use rowlock_proto::FencingToken;

use super::Invariant;
use crate::history::{Book, Fact, Lock};

/// The last token of each lock.
#[derive(Default)]
pub struct FencingMonotonic {
    last: BTreeMap<Lock, FencingToken>,
}

impl Invariant for FencingMonotonic {
    fn name(&self) -> &'static str {
        "fencing-monotonic"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        if let Fact::Entitled { lock, token, session, .. } = *fact {
            let last = self.last.insert(lock, token);
            if last.is_some_and(|last| token <= last) {
                return Err(format!("{lock:?}: {token} of session {session} was granted it after {last:?}"));
            }
        }
        Ok(())
    }
}
