//! fifo-in-real-time: a client that requests a lock after another client's queue position has been committed
//! gets the lock after that client. A client hears only of grants in the log; at the time of the grant no
//! earlier position still waits.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{FencingToken, SessionId};

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, Op};
use crate::history::{Book, Fact, Lock};

struct Asked {
    lock: Lock,
    /// Last queue position when the call began.
    behind: FencingToken,
    /// Positions of the session at that time: an owner may acquire a held lock again.
    had: BTreeSet<FencingToken>,
}

/// Grants of the log, and waiting calls.
#[derive(Default)]
pub struct FifoInRealTime {
    /// Never shrinks: a client may hear of a grant after its release.
    granted: BTreeSet<(Lock, FencingToken)>,
    asked: BTreeMap<CallId, Asked>,
}

impl FifoInRealTime {
    fn invoked(&mut self, call: CallId, session: SessionId, op: &Op, book: &Book) {
        let Op::Acquire { lock, .. } = op else { return };
        let behind = book.newest(*lock).unwrap_or_default();
        let own = book.queue(*lock).filter(|(_, position)| position.is_held && position.session == session);
        let had = own.map(|(token, _)| token).collect();
        self.asked.insert(call, Asked { lock: *lock, behind, had });
    }

    fn acquired(&self, asked: &Asked, token: FencingToken, book: &Book) -> Result<(), String> {
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
        match book.queue(*lock).find(|(before, position)| *before < token && !position.is_held) {
            Some((before, _)) => Err(format!("{lock:?} was acquired with {token}, and {before} still waits")),
            None => Ok(()),
        }
    }
}

impl Invariant for FifoInRealTime {
    fn name(&self) -> &'static str {
        "fifo-in-real-time"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        match fact {
            Fact::Entitled { lock, token, .. } => {
                self.granted.insert((*lock, *token));
            }
            Fact::Client { what: ClientFact::Invoked { call, session, op }, .. } => {
                self.invoked(*call, *session, op, book);
            }
            Fact::Client { what: ClientFact::Returned { call, result }, .. } => {
                if let (Some(asked), Ok(Answer::Acquired(token))) = (self.asked.remove(call), result) {
                    return self.acquired(&asked, *token, book);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
