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
