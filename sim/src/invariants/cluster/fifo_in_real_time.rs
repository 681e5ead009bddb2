//! fifo-in-real-time: a client that requests a lock after another client's queue position has been committed
//! gets the lock after that client. A client hears only of grants in the log; at the time of the grant no
//! earlier position still waits.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{FencingToken, SessionId};

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, Op};
use crate::history::{Fact, Lock};

struct Asked {
    lock: Lock,
    /// Last queue position when the call began.
    behind: FencingToken,
    /// Positions of the session at that time: an owner may acquire a held lock again.
    had: BTreeSet<FencingToken>,
}

/// Queues of the log, and waiting calls.
#[derive(Default)]
pub struct FifoInRealTime {
    last: BTreeMap<Lock, FencingToken>,
    waiting: BTreeSet<(Lock, FencingToken)>,
    /// Grants of the log, never removed: a client may hear of a grant after its release.
    granted: BTreeSet<(Lock, FencingToken)>,
    held: BTreeMap<(Lock, FencingToken), SessionId>,
    asked: BTreeMap<CallId, Asked>,
}

impl FifoInRealTime {
    fn invoked(&mut self, call: CallId, session: SessionId, op: &Op) {
        let Op::Acquire { lock, .. } = op else { return };
        let behind = self.last.get(lock).copied().unwrap_or_default();
        let own = self.held.iter().filter(|((of, _), holder)| of == lock && **holder == session);
        let had = own.map(|((_, token), _)| *token).collect();
        self.asked.insert(call, Asked { lock: *lock, behind, had });
    }

    fn acquired(&mut self, asked: &Asked, token: FencingToken) -> Result<(), String> {
        let Asked { lock, behind, had } = asked;
        if had.contains(&token) {
            return Ok(());
        }
        if !self.granted.contains(&(*lock, token)) {
            return Err(format!("{lock:?} was acquired with {token}, which the log has not granted it"));
        }
        if token <= *behind {
            return Err(format!(
                "{lock:?} was acquired with {token} by who asked when {behind} was in the queue"
            ));
        }
        match self.waiting.range((*lock, FencingToken(i64::MIN))..(*lock, token)).next() {
            Some((_, before)) => Err(format!("{lock:?} was acquired with {token}, and {before} still waits")),
            None => Ok(()),
        }
    }
}

impl Invariant for FifoInRealTime {
    fn name(&self) -> &'static str {
        "fifo-in-real-time"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Queued { lock, token, .. } => {
                self.last.insert(*lock, *token);
                self.waiting.insert((*lock, *token));
            }
            Fact::Entitled { lock, token, session, .. } => {
                self.waiting.remove(&(*lock, *token));
                self.granted.insert((*lock, *token));
                self.held.insert((*lock, *token), *session);
            }
            Fact::Left { lock, token, .. } => {
                self.waiting.remove(&(*lock, *token));
                self.held.remove(&(*lock, *token));
            }
            Fact::Client { what: ClientFact::Invoked { call, session, op }, .. } => {
                self.invoked(*call, *session, op);
            }
            Fact::Client { what: ClientFact::Returned { call, result }, .. } => {
                if let (Some(asked), Ok(Answer::Acquired(token))) = (self.asked.remove(call), result) {
                    return self.acquired(&asked, *token);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
