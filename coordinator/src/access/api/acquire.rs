//! Acquires: one command queues for all requested locks or for none.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{
    Acquire, Claim, LOCK_DELAY_MAX_MS, MIN_HOLD_MAX_MS, Mode, Notice, NoticeEvent, Owner, QueuePosition,
};
use rowlock_proto::response::Response;
use rowlock_proto::{Request, SessionId};
use rowlock_state::command::Command;

use super::call::{Call, MOVES_MAX};
use super::request_id::RequestId;
use super::{Api, Caller, Lease, LockName, Refusal, Secret};
use crate::limits::{API_LABEL_MAX_BYTES, API_LOCKS_MAX, API_WAIT_MAX};

/// Lease of the request.
#[derive(Clone, Debug)]
pub enum For {
    Lease(Secret),
    /// Opens a new lease with this TTL in milliseconds.
    New(u32),
}

/// Request for one lock of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub lock: LockName,
    pub mode: Mode,
    /// Number of permits of the lock, for mode permits; 0: the present number.
    pub limit: u32,
}

impl Part {
    /// Makes the request for an exclusive lock.
    pub fn exclusive(lock: &LockName) -> Part {
        Part { lock: lock.clone(), mode: Mode::Exclusive, limit: 0 }
    }
}

/// Options of an acquire, for all its locks.
#[derive(Clone, Debug)]
pub struct AcquireOptions {
    pub by: For,
    /// Client's name of the attempt. `None`: the node generates a name.
    pub request_id: Option<String>,
    /// Longest time before the reply; the queue positions remain after the reply. 0: a busy lock gives no
    /// queue position.
    pub wait: Duration,
    pub owner: Owner,
    pub label: String,
    pub lock_delay_ms: u32,
    pub max_hold_ms: u32,
    pub min_hold_ms: u32,
}

/// Result of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// Lease with the queue positions. `secret` is present if the attempt opened the lease.
    pub lease: SessionId,
    pub secret: Option<Secret>,
    /// Id for a retry.
    pub request_id: String,
    /// Remaining validity of the lease in milliseconds, counted from the time of the client's request.
    pub valid_for_ms: u32,
    /// Queue positions in the order of the requested locks; [`QueuePosition::Deadlock`] and
    /// [`QueuePosition::LimitIs`] are refusals instead.
    pub positions: Vec<QueuePosition>,
    /// This request found a lock taken. A repeated request that finds the earlier one's grant does not know.
    pub contended: bool,
}

impl AcquireOptions {
    fn check(&self) -> Result<RequestId, Refusal> {
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

    fn acquire(&self, part: &Part, (lease, id): (SessionId, &RequestId)) -> Acquire {
        let wait = !self.wait.is_zero();
        let data = (!self.label.is_empty()).then(|| Bytes::copy_from_slice(self.label.as_bytes()));
        Acquire {
            lock: part.lock.path().into(),
            prefix: id.prefix(lease, part.mode).into(),
            data,
            acl: Some(Acl::shared_open()),
            mode: part.mode,
            limit: part.limit,
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
    /// Queues for locks, or finds the queue positions of an earlier request with the same request id, and
    /// waits for the grants. With a wait of 0 the lease gets all locks or none.
    ///
    /// The wait ends at half of the lease's TTL at the latest, so a client keeps the lease alive by repeating
    /// the request.
    ///
    /// # Errors
    /// [`Refusal::Deadlock`], [`Refusal::Limit`]: at least one lock refused, no queue position was created.
    /// [`Refusal::Unknown`]: queue positions may exist. A retry with the same request id finds the positions;
    /// if the attempt opened the lease, the positions disappear when the lease expires.
    /// # Cancel safety
    /// Same as after `Unknown`.
    pub async fn acquire(
        &self,
        caller: &Caller,
        parts: &[Part],
        options: AcquireOptions,
    ) -> Result<Acquired, Refusal> {
        self.check_serving()?;
        let (begun, id) = (time::now(), options.check()?);
        if parts.is_empty() || parts.len() > API_LOCKS_MAX {
            return Err(Refusal::Bad(format!("a request is for 1 to {API_LOCKS_MAX} locks")));
        }
        if parts.len() > 1 && matches!(options.by, For::New(_)) {
            return Err(Refusal::Bad("several locks need a lease: POST /v1/leases first".to_owned()));
        }
        let _waiting = match options.wait.is_zero() {
            true => None,
            false => Some(self.waiting(caller)?),
        };
        let (secret, is_new) = match &options.by {
            For::Lease(secret) => (secret.clone(), false),
            For::New(ttl_ms) => (self.open(caller, *ttl_ms).await?.secret, true),
        };
        let (mut moves_left, mut contended) = (MOVES_MAX, false);
        let reached = loop {
            let call = Call::new(self, caller);
            let contended = &mut contended;
            let mut attempt = Attempted { call, secret: &secret, is_new, begun, parts, contended };
            let reached = attempt.run(&options, &id).await;
            if decides!("lease-stays-on-connection", !attempt.call.has_moved() || moves_left == 0) {
                break reached;
            }
            moves_left -= 1;
        };
        let is_without_position = match &reached {
            Ok((_, positions)) => positions.iter().all(|position| position.claim().is_none()),
            Err(refusal) => !matches!(refusal, Refusal::Unknown),
        };
        if decides!("new-lease-has-no-position", is_new && is_without_position) {
            self.close_unused(caller, &secret).await;
        }
        let (lease, positions) = reached?;
        assert!(lease.session == secret.session, "the positions are those of the lease that was shown");
        let secret = (is_new && !is_without_position).then_some(secret);
        let (lease, valid_for_ms) = (lease.session, lease.ttl_ms);
        let request_id = id.as_str().to_owned();
        Ok(Acquired { lease, secret, request_id, valid_for_ms, positions, contended })
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
}

/// Slot of a waiting request. Dropping the slot admits another request.
pub(super) struct Waiting<'a> {
    api: &'a Api,
    _place: super::handle::Slot,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.api.context.metrics.api_waits.dec();
    }
}

struct Attempted<'a> {
    call: Call<'a>,
    secret: &'a Secret,
    is_new: bool,
    begun: Instant,
    parts: &'a [Part],
    /// Set when a lock is taken; outlives a move to another connection.
    contended: &'a mut bool,
}

impl Attempted<'_> {
    async fn run(
        &mut self,
        options: &AcquireOptions,
        id: &RequestId,
    ) -> Result<(Lease, Vec<QueuePosition>), Refusal> {
        let lease = self.call.find(self.secret).await?;
        self.call.follow(&lease)?;
        // Opening a lease starts its timer.
        if decides!("lease-existed-before", !self.is_new) {
            self.call.touch(lease.session);
        }
        let until = self.begun + options.wait.min(Duration::from_millis(u64::from(lease.ttl_ms) / 2));
        let mut positions = self.ask(options, id).await?;
        let waits = |position: &QueuePosition| matches!(position, QueuePosition::Waiting { .. });
        while positions.iter().any(waits) && time::now() < until {
            let notice = self.call.notice(until).await?;
            self.call.has_waited();
            match notice {
                Some(Notice { claim, event }) => {
                    let mut all = positions.iter_mut();
                    if let Some(position) = all.find(|position| position.claim() == Some(&claim)) {
                        *position = after(claim, &event);
                    }
                }
                // The number of earlier positions has changed meanwhile.
                None => positions = self.ask(options, id).await?,
            }
        }
        if !self.is_new {
            self.call.be_noted(lease.session).await?;
        }
        Ok((lease, positions))
    }

    async fn ask(&mut self, options: &AcquireOptions, id: &RequestId) -> Result<Vec<QueuePosition>, Refusal> {
        let acquire = |part| options.acquire(part, (self.secret.session, id));
        let paths: Vec<&str> = self.parts.iter().map(|part| part.lock.path()).collect();
        // No path contains a zero byte, so another list of locks is another attempt.
        let attempt = id.attempt(&paths.join("\0"), !options.wait.is_zero());
        let command = Command::Client(Request::Acquire(self.parts.iter().map(acquire).collect()));
        let outcome = self.call.act_once(self.secret, attempt, &command).await?;
        let Response::QueuePositions(positions) = outcome else {
            unreachable!("an acquire answers with positions: {outcome:?}");
        };
        assert!(positions.len() == self.parts.len(), "there is a position for each lock");
        *self.contended |= positions.iter().any(|at| matches!(at, QueuePosition::Waiting { .. }));
        positions.into_iter().map(admitted).collect()
    }
}

/// Returns the position, or the refusal that the position reports.
fn admitted(position: QueuePosition) -> Result<QueuePosition, Refusal> {
    match position {
        QueuePosition::Deadlock(circle) => Err(Refusal::Deadlock(circle)),
        QueuePosition::LimitIs(limit) => Err(Refusal::Limit(limit)),
        position => Ok(position),
    }
}

/// Returns the position after a notice.
fn after(claim: Claim, event: &NoticeEvent) -> QueuePosition {
    match event {
        NoticeEvent::Granted | NoticeEvent::Asked(_) => QueuePosition::Held(claim),
        NoticeEvent::Deleted | NoticeEvent::Forced | NoticeEvent::Revoked => QueuePosition::Absent,
    }
}
