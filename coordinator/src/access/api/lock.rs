//! Names of locks, releases and verification. HTTP clients and ZooKeeper clients share the queues.

use std::str::FromStr;

use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_proto::Request;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Attempt, Claim};
use rowlock_proto::response::Response;
use rowlock_proto::{FencingToken, Right, SessionId, name, path as paths};
use rowlock_state::command::Command;
use rowlock_state::{LockView, Machine};

use super::call::Call;
use super::request_id::{Giving, RequestId};
use super::{Api, Caller, Refusal, Secret};
use crate::access::report::access;

/// Number of digits at the end of a queue znode's name.
const NUMBER_LEN: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockName(String);

/// Selector of the queue position to release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Position that holds the lock by this token.
    Token(FencingToken),
    /// Attempt of this request id, held or queued.
    Request(String),
}

impl LockName {
    pub fn path(&self) -> &str {
        &self.0
    }

    /// Returns the lock `text` below the znode `folder`.
    pub(super) fn below(folder: &str, text: &str) -> Result<LockName, Refusal> {
        let path = name::path_below(folder, text);
        path.map(LockName).map_err(|rule| Refusal::Bad(format!("{text:?} is not a name: {rule}")))
    }
}

impl FromStr for LockName {
    type Err = Refusal;

    /// Parses a name below `/locks`, or a path if the text begins with a slash.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if !text.starts_with('/') {
            return LockName::below(name::LOCK_BASE, text);
        }
        match paths::validate(text) {
            Ok(()) if text != "/" => Ok(LockName(text.to_owned())),
            Ok(()) => Err(Refusal::Bad("the root cannot be a lock".to_owned())),
            Err(error) => Err(Refusal::Bad(format!("{text:?} is not the path of a lock: {error}"))),
        }
    }
}

impl Api {
    /// Releases a lock or leaves its queue. Returns true if this request or an earlier copy released the
    /// position, false if the lease had lost the position before.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: repeat the request.
    /// # Cancel safety
    /// Same as after `Unknown`.
    pub async fn release(
        &self,
        caller: &Caller,
        lock: &LockName,
        (secret, which): (&Secret, &Which),
    ) -> Result<bool, Refusal> {
        self.check_serving()?;
        let start = match which {
            Which::Token(_) => None,
            Which::Request(id) => Some(id.parse::<RequestId>()?.start(secret.session)),
        };
        let wanted = (which, start.as_deref());
        let mut call = Call::new(self, caller);
        let lease = call.find(secret).await?;
        call.touch(lease.session);
        let mut found = self.find_place(lease.session, lock, wanted);
        if decides!("released-position-is-gone", found.is_none()) {
            call.sync().await?;
            found = self.find_place(lease.session, lock, wanted);
        }
        let giving = found.map(|(claim, holds)| release_command(lock, claim, holds));
        let gave = match giving {
            Some((giving, command)) => {
                let attempt = which.attempt(&lock.0, giving);
                match call.act_once(secret, attempt, &command).await {
                    // A release is always admitted: without a free page entry, the release loses its
                    // deduplication.
                    Err(Refusal::Spent) => call.act(secret, command).await,
                    other => other,
                }
                .map(Some)?
            }
            None => None,
        };
        // This node has now applied all earlier requests of the client.
        let copies = [Giving::Held, Giving::Place].into_iter();
        let copies = copies.filter(|_| !mutant::is(Mutant::ReleaseForgotten));
        let copies =
            copies.filter_map(|giving| call.remembered(lease.session, which.attempt(&lock.0, giving)));
        Ok(gave.into_iter().chain(copies).any(|outcome| match outcome {
            Response::Held(held) => held.contains(&true),
            other => other == Response::Empty,
        }))
    }

    /// Finds a queue position of the session in the local state and returns whether the position holds the
    /// lock. A token selects only positions that hold the lock.
    fn find_place(
        &self,
        session: SessionId,
        lock: &LockName,
        (which, start): (&Which, Option<&str>),
    ) -> Option<(Claim, bool)> {
        let state = self.context.replica.state.read();
        state.session_znodes(session).find_map(|(path, czxid, holds)| {
            let (of, name) = path.rsplit_once('/')?;
            let (token, holds) = (FencingToken(czxid.0), holds?);
            let is_it = match which {
                Which::Token(wanted) => decides!("released-token-fits", holds && token == *wanted),
                Which::Request(_) => start.is_some_and(|start| name.starts_with(start)),
            };
            (of == lock.0 && is_it).then(|| (Claim { path: path.into(), token }, holds))
        })
    }

    /// Returns whether the token held the lock at some moment between the request and its reply.
    pub async fn verify(
        &self,
        caller: &Caller,
        lock: &LockName,
        token: FencingToken,
    ) -> Result<bool, Refusal> {
        self.check_serving()?;
        assert!(lock.0.starts_with('/'), "the name of a lock has become a path");
        Call::new(self, caller).sync().await?;
        let state = self.context.replica.state.read();
        if decides!("lock-is-hidden", !state.rules().allow(&lock.0, Right::See, &caller.identities)) {
            return Err(Refusal::NoRight(Right::See));
        }
        let held = holder(&state, (lock, token), (SessionId::NONE, &caller.identities))?;
        Ok(held.is_some())
    }
}

/// Finds the position that holds the lock by this token, if the reader owns the position or may see the
/// position.
///
/// # Errors
/// [`Refusal::NotPermitted`]: the reader may not see the lock or one of its holders. A right token and a
/// wrong token then get the same error, so guessing reveals nothing.
pub(super) fn holder(
    state: &Machine,
    (lock, token): (&LockName, FencingToken),
    (session, who): (SessionId, &[Id]),
) -> Result<Option<Claim>, Refusal> {
    let sees_lock = access::may_see(state, &lock.0, who);
    let mut is_any_hidden = !sees_lock;
    for holder in state.lock_queue(&lock.0).iter().flat_map(LockView::holders) {
        let is_own = decides!("holder-is-caller", session != SessionId::NONE && holder.session == session);
        let is_seen = decides!(
            "holder-is-seen",
            is_own || sees_lock && access::may_see_place(state, &holder.path, who)
        );
        if is_seen && holder.token == token {
            return Ok(Some(Claim { path: holder.path.into(), token }));
        }
        is_any_hidden |= !is_seen;
    }
    if is_any_hidden { Err(Refusal::NotPermitted) } else { Ok(None) }
}

/// Returns the command for leaving a queue position.
fn release_command(lock: &LockName, claim: Claim, holds: bool) -> (Giving, Command) {
    if holds {
        return (Giving::Held, Command::Client(Request::Release([claim].into())));
    }
    let name = paths::name(&claim.path);
    let (prefix, _) =
        name.split_at_checked(name.len() - NUMBER_LEN).expect("Invariant: a place's name ends in its number");
    let attempt = Attempt { lock: lock.0.clone(), prefix: prefix.to_owned() };
    (Giving::Place, Command::Client(Request::Abandon(vec![attempt])))
}
