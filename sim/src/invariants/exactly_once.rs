//! exactly-once: a numbered write of a session takes effect once, however often the client sends the write,
//! and every reply to one number is equal. Replies to an acquire name the same queue positions; a later reply
//! may omit a position that has left the queue since.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{ErrorCode, FencingToken, SessionId};

use super::Invariant;
use crate::history::{Fact, Lock, Reply};

/// First reply to each write, and queue positions that have left.
#[derive(Default)]
pub struct ExactlyOnce {
    first: BTreeMap<(SessionId, u64), Reply>,
    acked: BTreeMap<SessionId, u64>,
    left: BTreeSet<(Lock, FencingToken)>,
}

impl ExactlyOnce {
    fn once(
        &mut self,
        session: SessionId,
        id: u64,
        acked: u64,
        changed: bool,
        reply: &Reply,
    ) -> Result<(), String> {
        let acked = (*self.acked.get(&session).unwrap_or(&0)).max(acked);
        self.acked.insert(session, acked);
        let what = |how: &str| format!("write {id} of session {session} {how}: {}", reply.text);
        match self.first.get(&(session, id)) {
            // Its client has acknowledged the outcome: no call waits for this answer.
            _ if id <= acked => {
                let is_refused = reply.refused == Some(ErrorCode::BadArguments) && !changed;
                if is_refused || self.first.contains_key(&(session, id)) && !changed {
                    return Ok(());
                }
                Err(what("was run although its client knew its outcome"))
            }
            Some(_) if changed => Err(what("took effect again")),
            Some(first) if !self.is_same_reply(first, reply) => {
                Err(format!("{}, first {}", what("was answered another way"), first.text))
            }
            Some(_) => Ok(()),
            None if reply.refused == Some(ErrorCode::ThrottledOp) => {
                if changed {
                    Err(what("was refused and took effect"))
                } else {
                    Ok(())
                }
            }
            None => {
                self.first.insert((session, id), reply.clone());
                Ok(())
            }
        }
    }

    fn is_same_reply(&self, first: &Reply, again: &Reply) -> bool {
        // The reply to an acquire shows the current queue positions.
        let had_places = first.places.iter().any(|(_, token)| token.is_some());
        if !had_places {
            return first.text == again.text;
        }
        let is_same = |((lock, first), (again_lock, again)): (&(Lock, _), &(Lock, _))| match (first, again) {
            (Some(first), None) => self.left.contains(&(*lock, *first)),
            _ => (lock, first) == (again_lock, again),
        };
        first.places.len() == again.places.len() && first.places.iter().zip(&again.places).all(is_same)
    }
}

impl Invariant for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly-once"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Once { session, id, acked, changed, reply } => {
                self.once(*session, *id, *acked, *changed, reply)?;
            }
            Fact::Left { lock, token, .. } => {
                self.left.insert((*lock, *token));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{check_history, left};
    use super::*;

    fn write(id: u64, acked: u64, changed: bool, text: &str) -> Fact {
        let reply = Reply { places: Vec::new(), text: text.to_owned(), bytes: 1, refused: None };
        Fact::Once { session: SessionId(1), id, acked, changed, reply }
    }

    fn refused(id: u64, acked: u64, changed: bool, code: ErrorCode) -> Fact {
        let text = code.code().to_string();
        let reply = Reply { places: Vec::new(), text, bytes: 1, refused: Some(code) };
        Fact::Once { session: SessionId(1), id, acked, changed, reply }
    }

    fn acquire(changed: bool, token: Option<i64>) -> Fact {
        let places = vec![(Lock(0), token.map(FencingToken))];
        let reply = Reply { places, text: format!("{changed}"), bytes: 1, refused: None };
        Fact::Once { session: SessionId(1), id: 1, acked: 0, changed, reply }
    }

    #[test]
    fn a_write_that_takes_effect_again_is_caught() {
        assert!(
            check_history(ExactlyOnce::default(), &[write(1, 0, true, "a"), write(1, 0, true, "a")]).is_err()
        );
    }

    #[test]
    fn another_answer_to_the_same_write_is_caught() {
        assert!(
            check_history(ExactlyOnce::default(), &[write(1, 0, true, "a"), write(1, 0, false, "b")])
                .is_err()
        );
        assert_eq!(
            check_history(ExactlyOnce::default(), &[write(1, 0, true, "a"), write(1, 0, false, "a")]),
            Ok(())
        );
        let forgotten = refused(1, 0, false, ErrorCode::BadArguments);
        assert!(check_history(ExactlyOnce::default(), &[write(1, 0, true, "a"), forgotten]).is_err());
    }

    #[test]
    fn another_place_for_the_same_acquire_is_caught() {
        let first = acquire(true, Some(4));
        assert!(check_history(ExactlyOnce::default(), &[first.clone(), acquire(false, Some(5))]).is_err());
        assert!(
            check_history(ExactlyOnce::default(), &[first.clone(), acquire(false, None)]).is_err(),
            "it has not left"
        );
        assert_eq!(check_history(ExactlyOnce::default(), &[first.clone(), acquire(false, Some(4))]), Ok(()));
        assert_eq!(check_history(ExactlyOnce::default(), &[first, left(4, 6), acquire(false, None)]), Ok(()));
    }

    #[test]
    fn a_write_whose_outcome_is_known_is_not_run_again() {
        let late = refused(1, 1, false, ErrorCode::BadArguments);
        assert_eq!(check_history(ExactlyOnce::default(), &[write(1, 0, true, "a"), late]), Ok(()));
        assert!(
            check_history(ExactlyOnce::default(), &[write(1, 0, true, "a"), write(1, 1, true, "a")]).is_err()
        );
    }

    #[test]
    fn a_refused_write_that_takes_effect_is_caught() {
        assert!(
            check_history(ExactlyOnce::default(), &[refused(1, 0, true, ErrorCode::ThrottledOp)]).is_err()
        );
    }
}
