//! ask: a client asks the holders of a lock to release the lock, optionally by a deadline.
//!
//! Invariant: a question changes no queue. Without a deadline the holder keeps its lock; with a deadline the
//! hold has a maximum from now on (`publish::revoke_at_ms`).

use std::sync::Arc;

use rowlock_proto::acl::perms;
use rowlock_proto::lock::Ask;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, Right, SessionId, path as paths};

use super::contender::{Key, KeyRef, PLACES_MAX, of_user};
use super::lock::Lock;
use super::party::Room;
use super::publish::revoke_at_ms;
use super::question::{NextQuestion, Question};
use crate::command::{Proposal, Stamp};
use crate::guard::decides;
use crate::machine::Machine;
use crate::ops::permit;
use crate::outcome::EventSink;
use crate::tree::split;

/// Limit of holders that a question reaches: the first ones of the queue.
pub const ASKED_MAX: usize = PLACES_MAX;

/// A question to a holder, with the lock and the position.
#[derive(Clone, Copy, Debug)]
pub struct AskedHolder<'a> {
    /// Path of the lock's znode.
    pub lock: &'a str,
    /// Path of the queue znode.
    pub path: &'a str,
    pub token: FencingToken,
    /// True if the session receives notices, as of grants and losses.
    pub is_acquired: bool,
    pub question: &'a Question,
}

impl Machine {
    /// Asks the holders of a lock. Needs no session: rights depend on the author's identities.
    pub(crate) fn ask<S: EventSink + ?Sized>(
        &mut self,
        (proposal, stamp): (&Proposal, Stamp),
        ask: &Ask,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        if decides!("asker-has-session", proposal.session != SessionId::NONE) {
            self.admit(proposal.session, proposal.attachment)?;
        }
        let (zxid, now_ms, who) = (self.next_zxid(), self.time_ms, &*proposal.identities);
        if !ask.is_good() || paths::validate(&ask.lock).is_err() {
            return Err(ErrorCode::BadArguments);
        }
        let znode = self.tree.nearest(&ask.lock);
        permit(&znode.acl, perms::CREATE, who)?;
        if decides!("question-has-deadline", ask.within_ms != 0) {
            permit(&znode.acl, perms::DELETE, who)?;
        }
        let right = if ask.within_ms == 0 { Right::Ask } else { Right::Force };
        self.require(&ask.lock, right, (who, stamp))?;
        let Some(lock) = self.locks.get(&ask.lock) else { return Ok(Response::Number(0)) };
        let before = lock.holders().take(ASKED_MAX).filter_map(|(_, it)| it.asked.as_deref());
        let turn = NextQuestion::next(before, (of_user(0, who), ask.within_ms == 0), now_ms)?;
        let queue_len = lock.len();
        let keys: Vec<Key> = lock.holders().take(ASKED_MAX).map(|(key, _)| key.clone()).collect();
        let asked = match keys.len() {
            0 => 0,
            // Only clients that may read the lock learn the number of holders.
            count => self.ahead_shown(lock, count, &Room::of_an_answer(who)),
        };
        let plain = Arc::new(Question::of(ask, None, &turn, now_ms));
        for key in &keys {
            let Machine { locks, sessions, .. } = self;
            locks.change(&ask.lock, key.as_ref(), |holder| {
                let before = holder.asked.as_deref().filter(|before| before.deadline.is_some());
                let question = before.map(|before| Arc::new(Question::of(ask, Some(before), &turn, now_ms)));
                holder.asked = Some(question.unwrap_or_else(|| plain.clone()));
                holder.revoke_at_ms = revoke_at_ms(holder, sessions);
            });
            self.notify_asked(zxid, &ask.lock, key.as_ref(), sink);
        }
        assert!(keys.len() <= ASKED_MAX, "a question reaches {} holders", keys.len());
        let len = self.locks.get(&ask.lock).map_or(0, Lock::len);
        assert_eq!(len, queue_len, "{}: a question has changed the queue", ask.lock);
        Ok(Response::Number(i32::try_from(asked).unwrap_or(i32::MAX)))
    }

    /// Iterates over the questions to the session's holds, in an order local to this node.
    pub fn questions_to(&self, session: SessionId) -> impl Iterator<Item = AskedHolder<'_>> {
        // In the usual case no holder of any lock has a question.
        let open = self.sessions.get(session).filter(|_| self.locks.asked() > 0);
        open.into_iter().flat_map(|open| open.shared_ephemerals()).filter_map(|(path, id)| {
            let (lock, _) = split(path)?;
            let czxid = self.tree.node(id).meta.czxid;
            let holder = self.locks.get(lock)?.holder(KeyRef { czxid, path })?;
            let question = holder.asked.as_deref()?;
            let (token, is_acquired) = (FencingToken(czxid.0), holder.is_acquired);
            Some(AskedHolder { lock, path, token, is_acquired, question })
        })
    }
}
