//! exactly-once: the answer of a release is true, also after a lost answer and a repeated release. A position
//! whose forced release has an answer no longer holds the lock.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::FencingToken;
use rowlock_state::outcome::EndReason;

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, Op};
use crate::history::{Book, Fact, Lock};

/// Pending releases, and releases in the log.
#[derive(Default)]
pub struct Releases {
    asked: BTreeMap<CallId, (Lock, FencingToken)>,
    released: BTreeSet<(Lock, FencingToken)>,
    /// Holders that a forced or ordinary release has removed, in order.
    put_out: Vec<(Lock, FencingToken)>,
    /// Forced releases: the lock, the requested token, the length of `put_out` at the start, and whether the
    /// token's position held the lock at the start.
    forced: BTreeMap<CallId, (Lock, Option<FencingToken>, usize, bool)>,
}

impl Releases {
    /// Checks the answer to a forced release: the release removed a holder, or there was none to remove.
    fn forced(&self, call: CallId, told: bool, book: &Book) -> Result<(), String> {
        let Some((lock, token, since, has_held)) = self.forced.get(&call).copied() else { return Ok(()) };
        let is_it = |place: &&(Lock, FencingToken)| place.0 == lock && token.is_none_or(|it| it == place.1);
        if told && !self.put_out[since..].iter().any(|place| is_it(&place)) {
            return Err(format!(
                "{token:?} of {lock:?} was put out by force, and the log says nothing of it"
            ));
        }
        // A waiter may be granted the lock after a forced release that has found no holder.
        match book.holders().find(|place| is_it(&place)).filter(|_| token.is_some() && (told || has_held)) {
            Some((_, held)) => Err(format!("{held} holds {lock:?} after its forced release: {told}")),
            None => Ok(()),
        }
    }
}

impl Invariant for Releases {
    fn name(&self) -> &'static str {
        "exactly-once"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        match fact {
            Fact::Left { lock, token, why } => {
                let is_release = matches!(why, EndReason::Released | EndReason::Forced);
                if book.is_held(*lock, *token) && is_release {
                    self.put_out.push((*lock, *token));
                }
                if *why == EndReason::Released {
                    self.released.insert((*lock, *token));
                }
            }
            Fact::Client { what: ClientFact::Invoked { call, op, .. }, .. } => match **op {
                Op::Release { lock, token } => drop(self.asked.insert(*call, (lock, token))),
                Op::Force { lock, token } => {
                    let has_held = token.is_some_and(|token| book.is_held(lock, token));
                    self.forced.insert(*call, (lock, token, self.put_out.len(), has_held));
                }
                _ => {}
            },
            Fact::Client { client, what: ClientFact::Returned { call, result }, .. } => {
                if let Ok(Answer::Released(told)) = result {
                    self.forced(*call, *told, book)?;
                }
                self.forced.remove(call);
                let (Some(place), Ok(Answer::Released(told))) = (self.asked.remove(call), result) else {
                    return Ok(());
                };
                let was_released = self.released.contains(&place);
                if was_released != *told {
                    let (lock, token) = place;
                    return Err(format!(
                        "client {} was told that its release has given {token} of {lock:?} back: {told}, and the log says {was_released}",
                        client.0
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
