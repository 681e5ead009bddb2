//! bounded: the cluster keeps at most the limits' count and bytes of outcomes per session, and refuses no
//! write of a session that has acknowledged all its outcomes.

use std::collections::BTreeMap;

use rowlock_proto::{ErrorCode, SessionId};
use rowlock_state::{OUTCOMES_MAX, OUTCOMES_MAX_BYTES};

use super::Invariant;
use crate::history::Fact;

/// Outcomes that the cluster must keep, by session and write number, with the least bytes of each.
#[derive(Default)]
pub struct Bounded {
    kept: BTreeMap<SessionId, BTreeMap<u64, usize>>,
    acked: BTreeMap<SessionId, u64>,
}

impl Invariant for Bounded {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::SessionEnded { session, .. } => {
                self.kept.remove(session);
                self.acked.remove(session);
            }
            Fact::Once { session, id, acked, reply, .. } => {
                let known = self.acked.entry(*session).or_default();
                *known = (*known).max(*acked);
                let kept = self.kept.entry(*session).or_default();
                kept.retain(|id, _| id > known);
                let bytes: usize = kept.values().sum();
                if reply.refused == Some(ErrorCode::ThrottledOp) {
                    return match kept.is_empty() {
                        true => Err(format!("session {session} keeps nothing, and write {id} was refused")),
                        false => Ok(()),
                    };
                }
                if id <= known || kept.contains_key(id) {
                    return Ok(());
                }
                if kept.len() >= OUTCOMES_MAX || bytes >= OUTCOMES_MAX_BYTES {
                    return Err(format!(
                        "write {id} of session {session} was run beside {} kept outcomes of at least {bytes} bytes",
                        kept.len()
                    ));
                }
                kept.insert(*id, reply.bytes);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_history;
    use super::*;
    use crate::history::Reply;

    fn write(id: u64, acked: u64, bytes: usize, refused: Option<ErrorCode>) -> Fact {
        let reply = Reply { places: Vec::new(), text: String::new(), bytes, refused };
        Fact::Once { session: SessionId(1), id, acked, changed: refused.is_none(), reply }
    }

    #[test]
    fn one_outcome_too_many_is_caught() {
        let max = OUTCOMES_MAX as u64;
        let mut facts: Vec<Fact> = (1..=max).map(|id| write(id, 0, 1, None)).collect();
        assert_eq!(check_history(Bounded::default(), &facts), Ok(()));
        facts.push(write(max + 1, 1, 1, None));
        assert_eq!(check_history(Bounded::default(), &facts), Ok(()), "the first is forgotten");
        facts.push(write(max + 2, 1, 1, None));
        assert!(check_history(Bounded::default(), &facts).is_err());
    }

    #[test]
    fn outcomes_beyond_the_bytes_are_caught() {
        let large = write(1, 0, OUTCOMES_MAX_BYTES, None);
        assert!(check_history(Bounded::default(), &[large.clone(), write(2, 0, 1, None)]).is_err());
        assert_eq!(check_history(Bounded::default(), &[large, write(2, 1, 1, None)]), Ok(()));
    }

    #[test]
    fn refusing_a_client_that_knows_all_is_caught() {
        let refused = |acked| write(2, acked, 1, Some(ErrorCode::ThrottledOp));
        assert!(check_history(Bounded::default(), &[write(1, 0, 1, None), refused(1)]).is_err());
        assert_eq!(check_history(Bounded::default(), &[write(1, 0, 1, None), refused(0)]), Ok(()));
    }
}
