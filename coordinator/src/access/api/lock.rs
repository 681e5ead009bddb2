//! Requests on locks. HTTP clients and ZooKeeper clients share the queues.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{
    Acquire, Attempt, Claim, LOCK_DELAY_MAX_MS, MIN_HOLD_MAX_MS, Mode, Notice, NoticeEvent, Owner, Party,
    PlaceState,
};
use rowlock_proto::response::Response;
use rowlock_proto::{FencingToken, Right, SessionId, name, path as paths};
use rowlock_state::command::Command;
use rowlock_state::{LockView, Machine};
use rowlock_types::limits::{API_LABEL_MAX_BYTES, API_WAIT_MAX};

use super::call::{Call, MOVES_MAX};
use super::request_id::{Giving, RequestId};
use super::{Api, Caller, Lease, Refusal, Secret};
use crate::access::report::access;

/// Number of digits at the end of a queue znode's name.
const NUMBER_LEN: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockName(String);

/// Lease of the request.
#[derive(Clone, Debug)]
pub enum For {
    Lease(Secret),
    /// Opens a new lease with this TTL in milliseconds.
    New(u32),
}

/// Parameters of an acquire.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub by: For,
    /// Client's name of the attempt. `None`: the node generates a name.
    pub request_id: Option<String>,
    /// Longest time before the reply; the queue position remains after the reply. 0: a busy lock gives no
    /// queue position.
    pub wait: Duration,
    pub mode: Mode,
    /// Number of permits of the lock, for mode permits; 0: the present number.
    pub limit: u32,
    pub owner: Owner,
    pub label: String,
    pub lock_delay_ms: u32,
    pub max_hold_ms: u32,
    pub min_hold_ms: u32,
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Lease with the queue position. `secret` is present if the attempt opened the lease.
    pub lease: SessionId,
    pub secret: Option<Secret>,
    /// Id for a retry.
    pub request_id: String,
    /// Remaining validity of the lease in milliseconds, counted from the time of the client's request.
    pub valid_for_ms: u32,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The attempt holds the lock.
    Held(Claim),
    /// The attempt is queued.
    Waiting {
        /// Queue znode and token.
        claim: Claim,
        /// Number of queued and holding attempts before this attempt.
        ahead: u32,
        /// First holder of the lock.
        holder: Option<Party>,
    },
    /// The request did not want to wait. No queue znode remains.
    Busy { holder: Option<Party> },
    /// The queue position was released, forced or revoked.
    Gone,
}

/// Selector of the queue position to release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Position that holds the lock by this token.
    Token(FencingToken),
    /// Attempt of this request id, held or queued.
    Request(String),
}

impl Place {
    pub(super) fn of(state: PlaceState) -> Result<Place, Refusal> {
        match state {
            PlaceState::Held(claim) => Ok(Place::Held(claim)),
            PlaceState::Waiting { claim, ahead, holder } => Ok(Place::Waiting { claim, ahead, holder }),
            PlaceState::Busy { holder, .. } => Ok(Place::Busy { holder }),
            PlaceState::Deadlock(circle) => Err(Refusal::Deadlock(circle)),
            PlaceState::LimitIs(limit) => Err(Refusal::Limit(limit)),
            PlaceState::Absent => Ok(Place::Gone),
        }
    }

    /// Returns the result after a notice about the queue position.
    pub(super) fn after(claim: Claim, event: NoticeEvent) -> Place {
        match event {
            NoticeEvent::Granted | NoticeEvent::Asked(_) => Place::Held(claim),
            NoticeEvent::Deleted | NoticeEvent::Forced | NoticeEvent::Revoked => Place::Gone,
        }
    }
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

impl Wanted {
    pub(super) fn check(&self) -> Result<RequestId, Refusal> {
        let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
        if self.wait > API_WAIT_MAX {
            return bad("wait_ms is more than 60000: ask again with the same request_id");
        }
        if self.label.len() > API_LABEL_MAX_BYTES {
            return bad("label has more than 256 bytes");
        }
        if self.lock_delay_ms > LOCK_DELAY_MAX_MS {
            return bad("lock_delay_ms is more than 60000");
        }
        if self.min_hold_ms > MIN_HOLD_MAX_MS {
            return bad("min_hold_ms is more than 2678400000 (31 days)");
        }
        match (&self.by, self.request_id.as_deref()) {
            (For::New(_), Some(_)) => bad(
                "request_id needs a lease: a retry with ttl_ms would make another lease; POST /v1/leases first",
            ),
            (_, Some(id)) if !mutant::is(Mutant::RequestIdIgnored) => id.parse(),
            _ => Ok(RequestId::random()),
        }
    }

    pub(super) fn acquire(&self, lock: &LockName, (lease, id): (SessionId, &RequestId)) -> Acquire {
        let wait = !self.wait.is_zero();
        let data = (!self.label.is_empty()).then(|| Bytes::copy_from_slice(self.label.as_bytes()));
        Acquire {
            lock: lock.0.as_str().into(),
            prefix: id.prefix(lease, self.mode).into(),
            data,
            acl: Some(Acl::shared_open()),
            mode: self.mode,
            limit: self.limit,
            wait,
            owner: self.owner,
            max_hold_ms: self.max_hold_ms,
            lock_delay_ms: self.lock_delay_ms,
            min_hold_ms: self.min_hold_ms,
            min_hold_lapses: false,
        }
    }
}

impl Api {
    /// Queues for a lock, or finds the queue position of an earlier request with the same request id, and
    /// waits for the grant.
    ///
    /// The wait ends at half of the lease's TTL at the latest, so a client keeps the lease alive by repeating
    /// the request.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: a queue position may exist. A retry with the same request id finds the position;
    /// if the attempt opened the lease, the position disappears when the lease expires.
    /// # Cancel safety
    /// Same as after `Unknown`.
    pub async fn acquire(
        &self,
        caller: &Caller,
        lock: &LockName,
        wanted: Wanted,
    ) -> Result<Standing, Refusal> {
        self.check_serving()?;
        let (begun, id) = (time::now(), wanted.check()?);
        let _waiting = match wanted.wait.is_zero() {
            true => None,
            false => Some(self.waiting(caller)?),
        };
        let (secret, is_new) = match &wanted.by {
            For::Lease(secret) => (secret.clone(), false),
            For::New(ttl_ms) => (self.open(caller, *ttl_ms).await?.secret, true),
        };
        let mut moves_left = MOVES_MAX;
        let stood = loop {
            let mut attempt = Attempted { call: Call::new(self, caller), secret: &secret, begun };
            let stood = attempt.run(lock, &wanted, &id, is_new).await;
            if !attempt.call.has_moved() || moves_left == 0 {
                break stood;
            }
            moves_left -= 1;
        };
        let is_without_place = match &stood {
            Ok((_, place)) => matches!(place, Place::Busy { .. } | Place::Gone),
            Err(refusal) => !matches!(refusal, Refusal::Unknown),
        };
        if is_new && is_without_place {
            self.close_unused(caller, &secret).await;
        }
        let (lease, place) = stood?;
        assert!(lease.session == secret.session, "a place is one of the lease that was shown");
        let secret = (is_new && !is_without_place).then_some(secret);
        let (lease, valid_for_ms) = (lease.session, lease.ttl_ms);
        Ok(Standing { lease, secret, request_id: id.as_str().to_owned(), valid_for_ms, place })
    }

    pub(super) fn waiting(&self, caller: &Caller) -> Result<Waiting<'_>, Refusal> {
        let metrics = &self.context.metrics;
        match self.waits.take(caller) {
            Some(place) => {
                metrics.api_waits.inc();
                Ok(Waiting { api: self, _place: place })
            }
            None => Err(Refusal::Full(
                "too many requests of all clients, or of this one, wait for locks at this node",
            )),
        }
    }

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
        if found.is_none() {
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
                Which::Token(wanted) => holds && token == *wanted,
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
        if !state.rules().allow(&lock.0, Right::See, &caller.identities) {
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
        let is_own = session != SessionId::NONE && holder.session == session;
        let is_seen = is_own || sees_lock && access::may_see_place(state, &holder.path, who);
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

/// Slot of a waiting request. Dropping the slot admits another request.
pub(super) struct Waiting<'a> {
    api: &'a Api,
    _place: super::shares::Slot,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.api.context.metrics.api_waits.dec();
    }
}

struct Attempted<'a> {
    call: Call<'a>,
    secret: &'a Secret,
    begun: Instant,
}

impl Attempted<'_> {
    async fn run(
        &mut self,
        lock: &LockName,
        wanted: &Wanted,
        id: &RequestId,
        is_new: bool,
    ) -> Result<(Lease, Place), Refusal> {
        let lease = self.call.find(self.secret).await?;
        self.call.follow(&lease)?;
        // Opening a lease starts its timer.
        if !is_new {
            self.call.touch(lease.session);
        }
        let until = self.begun + wanted.wait.min(Duration::from_millis(u64::from(lease.ttl_ms) / 2));
        let mut place = self.ask(lock, wanted, id).await?;
        while let Place::Waiting { claim, .. } = &place
            && time::now() < until
        {
            let heard = self.call.notice(until).await?;
            self.call.has_waited();
            place = match heard {
                Some(Notice { claim: of, event }) if of == *claim => Place::after(of, event),
                Some(_) => continue,
                // The number of earlier positions has changed meanwhile.
                None => self.ask(lock, wanted, id).await?,
            };
        }
        if !is_new {
            self.call.be_noted(lease.session).await?;
        }
        Ok((lease, place))
    }

    async fn ask(&mut self, lock: &LockName, wanted: &Wanted, id: &RequestId) -> Result<Place, Refusal> {
        let attempt = id.attempt(&lock.0, !wanted.wait.is_zero());
        let command =
            Command::Client(Request::Acquire([wanted.acquire(lock, (self.secret.session, id))].into()));
        let outcome = self.call.act_once(self.secret, attempt, &command).await?;
        let Response::PlaceStates(place_states) = outcome else {
            unreachable!("an acquire tells of its places: {outcome:?}");
        };
        place_states.into_iter().next().map_or(Ok(Place::Gone), Place::of)
    }
}
