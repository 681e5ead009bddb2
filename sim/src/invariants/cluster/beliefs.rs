//! mutual-exclusion-of-beliefs: of two clients that may not hold a lock together, the first stops believing
//! in the lock before the second begins; and a client that believes in a lock holds the lock in the log. The
//! promise holds as long as the clocks' rates are within their bound, no operator released the lock or ended
//! its session by force, and the session has no disconnect grace (docs/guarantees.md, the clock assumption).
//! A client knows of a forced loss once the log has answered a call that the client made after the loss.
//!
//! Plain clients know only the queue: during a lock-delay a plain client believes in a lock that the log has
//! not granted yet, and the log grants the lock to no other client.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId};
use rowlock_state::outcome::EndReason;

use super::super::Invariant;
use crate::history::client::{CallId, ClientFact, ClientId, Op};
use crate::history::{Book, Fact, Lock};

/// First moment and mode of a belief. Moments count beliefs, not time.
#[derive(Clone, Copy, Debug)]
struct Belief {
    client: ClientId,
    mode: Mode,
    began: u64,
}

/// Clients that last began to believe in a lock.
#[derive(Clone, Copy, Default)]
struct Newest {
    alone: Option<(FencingToken, Belief)>,
    beside_others: Option<(FencingToken, Belief)>,
}

/// Beliefs of clients, and the losses that excuse a belief.
#[derive(Default)]
pub struct Beliefs {
    moments: u64,
    beliefs: BTreeMap<(Lock, FencingToken), Belief>,
    newest: BTreeMap<Lock, Newest>,
    /// Positions that held locks in a former life of the cluster: the log reports nothing about them any
    /// more.
    former: BTreeSet<(Lock, FencingToken)>,
    with_grace: BTreeSet<SessionId>,
    plain: BTreeSet<SessionId>,
    /// A node may have started with a wrong wall clock: as a leader such a node revokes locks too early.
    has_wrong_clocks: bool,
    /// Losses that no client can know of in time.
    excused: BTreeSet<(Lock, FencingToken)>,
    /// Forced releases by session.
    forced: BTreeMap<SessionId, Vec<(Lock, FencingToken)>>,
    /// Calls after forced releases, each with the losses that the answer reveals.
    revealing: BTreeMap<CallId, Vec<(Lock, FencingToken)>>,
    /// Losses that an answer has revealed to their clients.
    revealed: BTreeSet<(Lock, FencingToken)>,
}

/// Reports whether the answer to `op` follows everything that the log had done before the call.
fn is_logged(op: &Op) -> bool {
    op.is_write() || matches!(op, Op::Sync | Op::Read { synced: true, .. })
}

fn go_together(one: Mode, other: Mode) -> bool {
    one != Mode::Exclusive && other != Mode::Exclusive
}

impl Beliefs {
    /// Creates the checker for a run in which every node starts with a right clock, or some node may not.
    pub fn with_clocks(starts_with_right_clocks: bool) -> Self {
        Beliefs { has_wrong_clocks: !starts_with_right_clocks, ..Beliefs::default() }
    }

    fn holds(
        &mut self,
        client: ClientId,
        key @ (lock, token): (Lock, FencingToken),
        mode: Mode,
        book: &Book,
    ) -> Result<(), String> {
        self.moments += 1;
        let new = Belief { client, mode, began: self.moments };
        let known = self.beliefs.get(&key).filter(|known| known.mode == mode);
        let Belief { began, .. } = *known.unwrap_or(&new);
        if self.revealed.contains(&key) {
            return Err(format!(
                "client {} believes in {token} of {lock:?} ({mode:?}), which was taken from it before a call that is answered",
                client.0
            ));
        }
        let is_excused = self.excused.contains(&key);
        let newest = self.newest.entry(lock).or_default();
        let is_later = |(other, belief): &&(FencingToken, Belief)| {
            *other != token && belief.began > began && !go_together(mode, belief.mode)
        };
        let later = newest.alone.iter().chain(&newest.beside_others).find(is_later);
        if let (Some((other, belief)), false) = (later, is_excused) {
            return Err(format!(
                "client {} believes in {token} of {lock:?} ({mode:?}) after client {} has begun to believe in {other}",
                client.0, belief.client.0
            ));
        }
        if began == self.moments {
            self.beliefs.insert(key, new);
            // A client that hears of a grant after the forced loss takes the lock from no other client.
            if !is_excused {
                let place =
                    if mode == Mode::Exclusive { &mut newest.alone } else { &mut newest.beside_others };
                *place = Some((token, new));
            }
        }
        let position = book.position(lock, token);
        match position.filter(|position| position.is_held).map(|position| position.mode) {
            _ if is_excused || self.former.contains(&key) => return Ok(()),
            Some(held) if mode == Mode::Exclusive && held != mode => {
                return Err(format!(
                    "client {} believes to have {lock:?} alone by {token}, which holds it as {held:?}",
                    client.0
                ));
            }
            Some(_) => return Ok(()),
            None => {}
        }
        match book.queue(lock).find(|(_, other)| other.is_held && !go_together(mode, other.mode)) {
            Some((other, _)) => Err(format!(
                "client {} believes in {token} of {lock:?} ({mode:?}), which the log has granted to {other}",
                client.0
            )),
            None if position.is_some_and(|position| self.plain.contains(&position.session)) => Ok(()),
            None => Err(format!(
                "client {} believes in {token} of {lock:?} ({mode:?}), which it does not hold in the log",
                client.0
            )),
        }
    }
}

impl Invariant for Beliefs {
    fn name(&self) -> &'static str {
        "mutual-exclusion-of-beliefs"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        match fact {
            Fact::NewLife(_) => self.former.extend(book.holders()),
            Fact::Left { lock, token, why } => {
                let session = book.position(*lock, *token).map(|position| position.session);
                let has_grace = session.is_some_and(|session| self.with_grace.contains(&session));
                let by_force =
                    matches!(why, EndReason::Deleted | EndReason::Forced | EndReason::SessionEnded);
                let is_early = self.has_wrong_clocks && *why == EndReason::Revoked;
                if by_force || is_early || has_grace && *why == EndReason::SessionExpired {
                    self.excused.insert((*lock, *token));
                }
                if let Some(session) = session.filter(|_| by_force) {
                    self.forced.entry(session).or_default().push((*lock, *token));
                }
            }
            Fact::Client { what: ClientFact::Session { session, grace_ms: Some(_), .. }, .. } => {
                self.with_grace.insert(*session);
            }
            Fact::Client { what: ClientFact::Plain { session }, .. } => {
                self.plain.insert(*session);
            }
            Fact::Client { what: ClientFact::Invoked { call, session, op }, .. } if is_logged(op) => {
                if let Some(lost) = self.forced.get(session) {
                    self.revealing.insert(*call, lost.clone());
                }
            }
            Fact::Client { what: ClientFact::Returned { call, result }, .. } => {
                let lost = self.revealing.remove(call).filter(|_| result.is_ok());
                self.revealed.extend(lost.into_iter().flatten());
            }
            Fact::SessionEnded { session, .. } => {
                self.forced.remove(session);
            }
            Fact::Client { client, what: ClientFact::Holds { lock, token, mode }, .. } => {
                return self.holds(*client, (*lock, *token), *mode, book);
            }
            Fact::Client { what: ClientFact::LetGo { lock, token }, .. } => {
                self.beliefs.remove(&(*lock, *token));
            }
            _ => {}
        }
        Ok(())
    }
}
