//! fifo: queue positions enter at the end of the queue, and the log grants in the queue's order.

use std::collections::BTreeMap;

use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::Invariant;
use crate::history::{Fact, Lock};

struct Member {
    session: SessionId,
    holds: bool,
}

/// Queues as the log built them.
#[derive(Default)]
pub struct Fifo {
    queues: BTreeMap<Lock, BTreeMap<FencingToken, Member>>,
}

impl Fifo {
    fn queued(&mut self, lock: Lock, token: FencingToken, session: SessionId) -> Result<(), String> {
        let queue = self.queues.entry(lock).or_default();
        if queue.last_key_value().is_some_and(|(last, _)| token <= *last) {
            return Err(format!("{lock:?}: place {token} was not taken at the end of the queue"));
        }
        queue.insert(token, Member { session, holds: false });
        Ok(())
    }

    /// Checks a grant: every earlier position must have been granted the lock too, and may still hold the
    /// lock.
    fn entitled(&mut self, lock: Lock, token: FencingToken, zxid: Zxid) -> Result<(), String> {
        let queue = self.queues.entry(lock).or_default();
        if let Some((before, member)) = queue.range(..token).find(|(_, member)| !member.holds) {
            return Err(format!(
                "{lock:?} was granted to {token} by {zxid}, and {before} of session {} waits before it",
                member.session
            ));
        }
        match queue.get_mut(&token).filter(|member| !member.holds) {
            Some(member) => {
                member.holds = true;
                Ok(())
            }
            None => Err(format!("{lock:?} was granted by {zxid} to {token}, which does not wait")),
        }
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
            Fact::Left { lock, token, .. } => {
                let member = self.queues.entry(lock).or_default().remove(&token);
                member.map(drop).ok_or_else(|| format!("{lock:?}: {token} left without a place"))
            }
            _ => Ok(()),
        }
    }
}
