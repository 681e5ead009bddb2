//! fifo: grants follow the queue's order, and a retry neither jumps the queue nor takes a second place in it.

use std::collections::BTreeMap;

use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::Invariant;
use crate::history::{Fact, Lock};

struct Member {
    session: SessionId,
    left: Option<Zxid>,
}

/// The queues as the log made them. Members that left are kept until a later member was granted.
#[derive(Default)]
pub struct Fifo {
    queues: BTreeMap<Lock, BTreeMap<FencingToken, Member>>,
}

impl Invariant for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Queued { lock, token, session, .. } => {
                let queue = self.queues.entry(lock).or_default();
                if queue.last_key_value().is_some_and(|(last, _)| token <= *last) {
                    return Err(format!("{lock:?}: place {token} was not taken at the end of the queue"));
                }
                if queue.values().any(|member| member.session == session && member.left.is_none()) {
                    return Err(format!("{lock:?}: session {session} took a second place with {token}"));
                }
                queue.insert(token, Member { session, left: None });
            }
            Fact::Left { lock, token, at } => {
                let queue = self.queues.entry(lock).or_default();
                let member =
                    queue.get_mut(&token).ok_or(format!("{lock:?}: {token} left without a place"))?;
                member.left = Some(at);
            }
            Fact::Granted { lock, token, session, seen, .. } => {
                let queue = self.queues.entry(lock).or_default();
                let earlier =
                    queue.range(..token).find(|(_, member)| member.left.is_none_or(|left| left > seen));
                if let Some((before, member)) = earlier {
                    return Err(format!(
                        "{lock:?} granted to {token} in the state of {seen} although {before} of session {} was before it",
                        member.session
                    ));
                }
                if queue.get(&token).is_none_or(|member| member.session != session) {
                    return Err(format!(
                        "{lock:?} granted to session {session}, which does not own place {token}"
                    ));
                }
                queue.retain(|place, _| *place >= token);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::*;
    use crate::history::Millis;

    fn queued(session: i64, token: i64) -> Fact {
        Fact::Queued { lock: Lock(0), token: FencingToken(token), session: SessionId(session) }
    }

    fn left(token: i64, at: i64) -> Fact {
        Fact::Left { lock: Lock(0), token: FencingToken(token), at: Zxid(at) }
    }

    fn granted(session: i64, token: i64, seen: i64) -> Fact {
        Fact::Granted {
            lock: Lock(0),
            token: FencingToken(token),
            session: SessionId(session),
            seen: Zxid(seen),
            now: Millis(0),
            until: Millis(1),
        }
    }

    #[test]
    fn a_grant_past_an_earlier_waiter_is_caught() {
        assert!(
            judge(Fifo::default(), &[queued(1, 1), queued(2, 2), queued(3, 3), left(1, 4), granted(3, 3, 4)])
                .is_err()
        );
    }

    #[test]
    fn a_grant_from_a_state_in_which_the_holder_was_still_there_is_caught() {
        assert!(judge(Fifo::default(), &[queued(1, 1), queued(2, 2), left(1, 9), granted(2, 2, 8)]).is_err());
    }

    #[test]
    fn a_second_place_and_a_stolen_place_are_caught() {
        assert!(judge(Fifo::default(), &[queued(1, 1), queued(1, 2)]).is_err());
        assert!(judge(Fifo::default(), &[queued(1, 1), granted(2, 1, 1)]).is_err());
    }

    #[test]
    fn a_waiter_that_dies_in_the_queue_is_passed_over() {
        let facts = [
            queued(1, 1),
            queued(2, 2),
            queued(3, 3),
            granted(1, 1, 3),
            left(2, 4),
            left(1, 5),
            granted(3, 3, 5),
        ];
        assert_eq!(judge(Fifo::default(), &facts), Ok(()));
    }
}
