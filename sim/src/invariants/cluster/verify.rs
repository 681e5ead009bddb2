//! linearizable-verify: the answer to a verify was right at a moment between call and answer. If an HTTP
//! request gets its locks, the session held all the locks at the same moment of the call; if the answer names
//! another holder, this holder held the lock during the call; if the answer is a position in the queue, the
//! session waited there at a moment of the call.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::report::{LockEvent, LockEventKind};
use rowlock_proto::{FencingToken, SessionId};

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, Op};
use crate::history::{Book, Fact, Lock};

type Place = (Lock, FencingToken);

struct Asked {
    locks: Vec<Lock>,
    /// Position in question; `None` if the answer names the position.
    place: Option<Place>,
    held: BTreeSet<Place>,
    /// Length of `changes` at the start of the call.
    since: usize,
    session: SessionId,
    /// Positions of the session in the queue, during the call, counted from 1.
    positions: BTreeSet<u64>,
}

impl Asked {
    fn note_positions(&mut self, book: &Book) {
        let [lock] = self.locks[..] else { return };
        let queue = (1..).zip(book.queue(lock));
        let own = queue.filter(|(_, (_, place))| place.session == self.session && !place.is_held);
        self.positions.extend(own.map(|(position, _)| position));
    }
}

/// Changes of holders in the log, and unanswered calls about holders.
#[derive(Default)]
pub struct LinearizableVerify {
    /// Labels that holders have set.
    labels: BTreeMap<FencingToken, String>,
    /// Positions that began (true) or ceased (false) to hold a lock.
    changes: Vec<(Place, bool)>,
    asked: BTreeMap<CallId, Asked>,
}

impl LinearizableVerify {
    fn invoked(&mut self, (call, session): (CallId, SessionId), op: &Op, book: &Book) {
        let (locks, place) = match op {
            Op::Verify { lock, token } => (vec![*lock], Some((*lock, *token))),
            Op::Held { locks } => (locks.clone(), None),
            _ => return,
        };
        let (held, since) = (book.holders().collect(), self.changes.len());
        let positions = BTreeSet::new();
        self.asked.insert(call, Asked { locks, place, held, since, session, positions });
    }

    /// Reports whether, at a moment since the call began, "all these positions hold" was `is_held`.
    fn could_be(&self, asked: &Asked, places: &[Place], is_held: bool) -> bool {
        self.was_so(asked, |held| places.iter().all(|place| held.contains(place)) == is_held)
    }

    /// Reports whether, at a moment since the call began, a position with such a label held the lock.
    fn could_be_taken(&self, asked: &Asked, by: &str) -> bool {
        let is_by = |(lock, token): &Place| {
            asked.locks.contains(lock) && self.labels.get(token).is_some_and(|label| label.contains(by))
        };
        self.was_so(asked, |held| held.iter().any(is_by))
    }

    fn was_so(&self, asked: &Asked, is_so: impl Fn(&BTreeSet<Place>) -> bool) -> bool {
        let mut held = asked.held.clone();
        is_so(&held)
            || self.changes[asked.since..].iter().any(|(place, begins)| {
                if *begins {
                    held.insert(*place)
                } else {
                    held.remove(place)
                };
                is_so(&held)
            })
    }
}

impl Invariant for LinearizableVerify {
    fn name(&self) -> &'static str {
        "linearizable-verify"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        let changes_queue = matches!(
            fact,
            Fact::Queued { .. } | Fact::Entitled { .. } | Fact::Left { .. } | Fact::NewLife(_)
        );
        if changes_queue {
            self.asked.values_mut().for_each(|asked| asked.note_positions(book));
        }
        match fact {
            // A former holder holds nothing in the new cluster, and any node of both clusters may answer a
            // call.
            Fact::NewLife(_) => self.changes.extend(book.holders().map(|place| (place, false))),
            Fact::LockEvent(entry) => {
                if let Some(LockEvent { kind: LockEventKind::Granted { .. }, token, label, .. }) =
                    entry.event.lock()
                {
                    self.labels.insert(*token, label.clone());
                }
            }
            Fact::Entitled { lock, token, .. } => self.changes.push(((*lock, *token), true)),
            Fact::Left { lock, token, .. } => self.changes.push(((*lock, *token), false)),
            Fact::Client { what: ClientFact::Invoked { call, session, op }, .. } => {
                self.invoked((*call, *session), op, book);
            }
            Fact::Client { client, what: ClientFact::Returned { call, result }, .. } => {
                let Some(mut asked) = self.asked.remove(call) else { return Ok(()) };
                let (places, is_held) = match (result, asked.place) {
                    (Ok(Answer::Verified(is_held)), Some(place)) => (vec![place], *is_held),
                    (Ok(Answer::Held(tokens)), _) => {
                        (asked.locks.iter().copied().zip(tokens.iter().copied()).collect(), true)
                    }
                    (Ok(Answer::Waiting(position)), _) => {
                        asked.note_positions(book);
                        return match asked.positions.contains(position) {
                            true => Ok(()),
                            false => Err(format!(
                                "client {} was told to wait at position {position}, and waited at {:?}",
                                client.0, asked.positions
                            )),
                        };
                    }
                    (Ok(Answer::Taken(by)), _) => {
                        return match self.could_be_taken(&asked, by) {
                            true => Ok(()),
                            false => Err(format!("client {} was told of {by}, which held nothing", client.0)),
                        };
                    }
                    _ => return Ok(()),
                };
                if !self.could_be(&asked, &places, is_held) {
                    return Err(format!(
                        "client {} was told that {places:?} are held: {is_held}, wrong throughout the call",
                        client.0
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
