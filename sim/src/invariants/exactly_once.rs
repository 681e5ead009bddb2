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
