//! fifo: grants follow the queue's order, and a retry neither jumps the queue nor takes a second place in it.

use std::collections::BTreeMap;

use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::Invariant;
use crate::history::{Fact, Lock};

struct Member {
    session: SessionId,
    entitled: Option<Zxid>,
    left: Option<Zxid>,
}

/// The queues as the log made them. Members that left are kept until a later member was granted.
#[derive(Default)]
pub struct Fifo {
    queues: BTreeMap<Lock, BTreeMap<FencingToken, Member>>,
    /// Sessions may ask for a lock while they wait for it.
    may_ask_twice: bool,
}

impl Fifo {
    /// For clients that may ask for a lock several times at once: a second place is none of a retry.
    pub fn of_busy_sessions() -> Self {
        Fifo { may_ask_twice: true, ..Fifo::default() }
    }

    fn queued(&mut self, lock: Lock, token: FencingToken, session: SessionId) -> Result<(), String> {
        let queue = self.queues.entry(lock).or_default();
        if queue.last_key_value().is_some_and(|(last, _)| token <= *last) {
            return Err(format!("{lock:?}: place {token} was not taken at the end of the queue"));
        }
        let has_place = |member: &Member| member.session == session && member.left.is_none();
        if !self.may_ask_twice && queue.values().any(has_place) {
            return Err(format!("{lock:?}: session {session} took a second place with {token}"));
        }
        queue.insert(token, Member { session, entitled: None, left: None });
        Ok(())
    }

    /// The log grants: every place before must have been granted the lock, too, and may still hold it.
    fn entitled(&mut self, lock: Lock, token: FencingToken, zxid: Zxid) -> Result<(), String> {
        let queue = self.queues.entry(lock).or_default();
        let waits = |member: &Member| member.left.is_none() && member.entitled.is_none();
        if let Some((before, member)) = queue.range(..token).find(|(_, member)| waits(member)) {
            return Err(format!(
                "{lock:?} was granted to {token} by {zxid}, and {before} of session {} waits before it",
                member.session
            ));
        }
        match queue.get_mut(&token) {
            Some(member) if member.left.is_none() && member.entitled.is_none() => {
                member.entitled = Some(zxid);
                Ok(())
            }
            _ => Err(format!("{lock:?} was granted by {zxid} to {token}, which does not wait")),
        }
    }

    /// A client takes itself for the holder, in the state of `seen`.
    fn granted(
        &mut self,
        (lock, token): (Lock, FencingToken),
        session: SessionId,
        seen: Zxid,
        by_queue: bool,
    ) -> Result<(), String> {
        let queue = self.queues.entry(lock).or_default();
        let own = queue.get(&token).filter(|member| member.session == session).ok_or_else(|| {
            format!("{lock:?} granted to session {session}, which does not own place {token}")
        })?;
        if !by_queue && own.entitled.is_none_or(|entitled| entitled > seen) {
            return Err(format!(
                "{lock:?} granted to {token} in the state of {seen}, the log has not granted it"
            ));
        }
        let here = |member: &Member| member.left.is_none_or(|left| left > seen);
        let in_the_way = |member: &Member| here(member) && (by_queue || member.entitled.is_none());
        if let Some((before, member)) = queue.range(..token).find(|(_, member)| in_the_way(member)) {
            return Err(format!(
                "{lock:?} granted to {token} in the state of {seen} although {before} of session {} was before it",
                member.session
            ));
        }
        queue.retain(|place, member| *place >= token || here(member));
        Ok(())
    }
}

impl Invariant for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Queued { lock, token, session, .. } => self.queued(lock, token, session),
            Fact::Entitled { lock, token, zxid, .. } => self.entitled(lock, token, zxid),
            Fact::Left { lock, token, at } => {
                let queue = self.queues.entry(lock).or_default();
                let member =
                    queue.get_mut(&token).ok_or(format!("{lock:?}: {token} left without a place"))?;
                member.left = Some(at);
                if self.may_ask_twice {
                    // No client will say in which state it believes what.
                    queue.remove(&token);
                }
                Ok(())
            }
            Fact::Granted { lock, token, session, seen, by_queue, .. } => {
                self.granted((lock, token), session, seen, by_queue)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;

    use super::super::{judge, left};
    use super::*;
    use crate::history::Millis;

    fn queued(session: i64, token: i64) -> Fact {
        super::super::queued(session, token, Mode::Exclusive, None)
    }

    fn entitled(token: i64) -> Fact {
        super::super::entitled(token, None, Millis(0))
    }

    fn granted_as(session: i64, token: i64, seen: i64, is_by_queue: bool) -> Fact {
        let Fact::Granted { lock, token, session, mode, now, until, cap, .. } =
            super::super::granted(session, token, Mode::Exclusive, (0, 1))
        else {
            unreachable!()
        };
        let (by_queue, seen) = (is_by_queue, Zxid(seen));
        Fact::Granted { lock, token, session, mode, by_queue, seen, now, until, cap }
    }

    fn granted(session: i64, token: i64, seen: i64) -> Fact {
        granted_as(session, token, seen, true)
    }

    #[test]
    fn a_grant_past_an_earlier_waiter_is_caught() {
        let facts = [queued(1, 1), queued(2, 2), queued(3, 3), left(1, 4)];
        assert!(judge(Fifo::default(), &[&facts[..], &[granted(3, 3, 4)]].concat()).is_err());
        assert!(judge(Fifo::default(), &[&facts[..], &[entitled(3)]].concat()).is_err());
    }

    #[test]
    fn a_grant_from_a_state_in_which_the_holder_was_still_there_is_caught() {
        assert!(judge(Fifo::default(), &[queued(1, 1), queued(2, 2), left(1, 9), granted(2, 2, 8)]).is_err());
    }

    #[test]
    fn a_client_that_was_told_of_a_grant_before_the_log_made_it_is_caught() {
        let facts = [queued(1, 1), granted_as(1, 1, 5, false)];
        assert!(judge(Fifo::default(), &facts).unwrap_err().contains("has not granted"));
        let facts = [queued(1, 1), entitled(1), granted_as(1, 1, 5, false)];
        assert_eq!(judge(Fifo::default(), &facts), Ok(()));
    }

    #[test]
    fn a_second_place_and_a_stolen_place_are_caught() {
        assert!(judge(Fifo::default(), &[queued(1, 1), queued(1, 2)]).is_err());
        assert!(judge(Fifo::default(), &[queued(1, 1), granted(2, 1, 1)]).is_err());
    }

    #[test]
    fn a_place_that_is_granted_twice_is_caught() {
        assert!(judge(Fifo::default(), &[queued(1, 1), entitled(1), entitled(1)]).is_err());
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
            entitled(3),
            granted(3, 3, 5),
        ];
        assert_eq!(judge(Fifo::default(), &facts), Ok(()));
    }
}
