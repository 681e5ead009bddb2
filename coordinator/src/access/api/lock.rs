//! Names of locks, releases, verification, questions to holders, and forced releases by operators. HTTP
//! clients and ZooKeeper clients share the queues.

use std::cmp::Reverse;
use std::str::FromStr;

use crate::limits::API_QUESTIONS_MAX;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Ask, Attempt, Claim, Party};
use rowlock_proto::report::ShownQuestion;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, Request, Right, SessionId, name, path as paths};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::rules::Decision;
use rowlock_state::{LockView, Machine};

use super::call::Call;
use super::request_id::{Giving, RequestId};
use super::{Api, Caller, Refusal, Secret};
use crate::access::report::{self, access};
use crate::node::zk::Opener;

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

/// Question to the holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questioned {
    pub lock: String,
    pub token: FencingToken,
    pub asked: ShownQuestion,
}

impl Api {
    /// Asks the holders of a lock. Returns the number of holders and the first holders visible to the caller.
    /// The HTTP listener and the lock's ACL decide whether the caller may set a deadline.
    ///
    /// # Errors
    /// [`Refusal::Full`]: the caller asked the holders of this lock less than a second ago and sets no
    /// deadline. [`Refusal::Unknown`]: the question may have been asked; a retry asks again.
    pub async fn ask(&self, caller: &Caller, ask: Ask) -> Result<(u32, Vec<Party>), Refusal> {
        self.check_serving()?;
        let command = Command::Client(Request::Ask(ask.clone()));
        let applied = Call::new(self, caller).submit(SessionId::NONE, Attachment::default(), command).await?;
        match applied.result {
            Ok(Response::Number(count)) => {
                Ok((u32::try_from(count).unwrap_or(0), self.questioned(caller, &ask)))
            }
            Ok(other) => unreachable!("a question tells how many holders it has reached: {other:?}"),
            Err(ErrorCode::ThrottledOp) => Err(Refusal::Full(
                "you asked the holders of this lock less than a second ago, or too many ask",
            )),
            Err(ErrorCode::BadArguments) => Err(Refusal::Bad("this cannot be the path of a lock".to_owned())),
            Err(code) => Err(Refusal::of(code)),
        }
    }

    fn questioned(&self, caller: &Caller, ask: &Ask) -> Vec<Party> {
        let state = self.context.replica.state.read();
        let Some(queue) = state.lock_queue(&ask.lock) else { return Vec::new() };
        let may_read = |path: &str| state.may_read(path, &caller.identities);
        if decides!("asked-lock-is-unreadable", !may_read(&ask.lock)) {
            return Vec::new();
        }
        let has_it =
            |question: &rowlock_state::Question| (&question.reason, &question.by) == (&ask.reason, &ask.by);
        let asked =
            queue.holders().filter(|it| it.asked.as_deref().is_some_and(has_it) && may_read(&it.path));
        let party = |it: rowlock_state::ContenderView| Party {
            path: it.path.into(),
            session: it.session,
            token: it.token,
            label: it.label,
            since_ms: it.granted_ms.unwrap_or(it.requested_ms),
        };
        asked.take(API_QUESTIONS_MAX).map(party).collect()
    }

    /// Returns the newest questions to the session from the local state, one for each lock with a question.
    pub fn questions_to(&self, session: SessionId) -> Vec<Questioned> {
        let state = self.context.replica.state.read();
        let now_ms = self.reports.now_ms(&state);
        let mut all: Vec<_> = state.questions_to(session).collect();
        all.sort_by_key(|it| (Reverse(it.question.asked_ms), it.token));
        let one = |it: rowlock_state::AskedHolder<'_>| Questioned {
            lock: it.lock.to_owned(),
            token: it.token,
            asked: report::shown_question(it.question, now_ms),
        };
        all.into_iter().take(API_QUESTIONS_MAX).map(one).collect()
    }
}

/// TTL of the lease for the command, in milliseconds; clamped to the shortest session timeout.
const TTL_MS: u32 = 1_000;
/// Token that selects a lock-delay instead of a holder.
const OF_DELAY: FencingToken = FencingToken(0);

impl Api {
    /// Returns whether a rule for the lock grants the caller this right, according to the local state.
    pub fn grants(&self, caller: &Caller, lock: &LockName, right: Right) -> bool {
        let state = self.context.replica.state.read();
        let Decision { rights, pattern } = state.rules().decide(lock.path(), &caller.identities, true);
        pattern.is_some() && rights.has(right)
    }

    /// Takes the lock away from the holder of this token, or ends the lock-delay if the token is 0. Returns
    /// false if there was neither; repeating the request is no error. The caller checks the permission.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`]: the lock's ACL does not permit the caller to delete. [`Refusal::Unknown`]:
    /// repeat the request.
    pub async fn force(
        &self,
        caller: &Caller,
        lock: &LockName,
        token: FencingToken,
    ) -> Result<bool, Refusal> {
        self.check_serving()?;
        Call::new(self, caller).sync().await?;
        let holder = {
            let state = self.context.replica.state.read();
            let queue = state.lock_queue(lock.path());
            queue.and_then(|queue| {
                queue.holders().find(|holder| holder.token == token).map(|it| it.path.into())
            })
        };
        let path = match holder {
            Some(path) => path,
            None if token == OF_DELAY => lock.path().into(),
            None => return Ok(false),
        };
        let command = Command::Client(Request::ForceRelease(Claim { path, token }));
        let secret = self.open_as(caller, TTL_MS, Opener::Operator).await?.secret;
        let done = Call::new(self, caller).act(&secret, command).await;
        self.close_unused(caller, &secret).await;
        match done {
            Ok(Response::Held(held)) => Ok(held.contains(&true)),
            // The internal lease expired during a stall of the cluster; the caller does not know this lease.
            Err(Refusal::LeaseOver) => Err(Refusal::Unknown),
            Err(refusal) => Err(refusal),
            Ok(other) => unreachable!("a forced release tells what was held: {other:?}"),
        }
    }
}
