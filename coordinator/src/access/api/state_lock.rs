//! Locks of Terraform's and OpenTofu's states: positions in the queues that all clients share.
//!
//! Terraform sends no keepalives, so the session of a state lock has a timeout of [`STATE_LOCK_MS`]. Until
//! the session holds the lock, its timeout is short, so an aborted attempt disappears soon. No client gets
//! the secret of the session. A program sends the lock's ID in every request, and the program's token must
//! permit the lock; the node then acts for the session with a proof derived from the ID, for which no
//! password exists.
//!
//! Must never do: reveal more of another client's position than its ACL permits.

use std::str::FromStr;

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner, QueuePosition};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, path as paths};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::{ContenderView, Machine, Proof, STATE_LOCK_MS};
use serde_json::{Value, json};

use super::call::{Call, MOVES_MAX};
use super::request_id::RequestId;
use super::{Api, Caller, LockName, Refusal, Secret};
use crate::node::moment;
use crate::node::zk::Opener;

const FOLDER: &str = "/locks/@terraform";
/// Session timeout of an attempt before the grant, in milliseconds.
const TTL_MS: u32 = 10_000;

/// Terraform's lock info: a JSON document with at least an `ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    id: RequestId,
    document: Bytes,
}

/// Result of an attempt at a state's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateLock {
    /// Held by the requested ID.
    Held(Claim),
    /// Held or queued by another client; contains the lock info of that client.
    Taken(Value),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlocked {
    /// True if the requested ID held the lock, false if the lock was free.
    Done(bool),
    /// Held by another client.
    Taken(Value),
}

enum LockStatus {
    Free,
    /// Held by the requested ID.
    Own(ContenderView),
    Taken(Value),
}

/// Returns the lock of the state `name`.
///
/// # Errors
/// [`Refusal::Bad`]: not a name.
pub fn state_lock(name: &str) -> Result<LockName, Refusal> {
    LockName::below(FOLDER, name)
}

impl LockInfo {
    /// Parses the client's lock info.
    ///
    /// # Errors
    /// [`Refusal::Bad`].
    pub fn read(document: Bytes) -> Result<LockInfo, Refusal> {
        let id = id_in(&document).ok_or_else(|| {
            Refusal::Bad("the body is not a JSON object with an ID, which is a text".to_owned())
        })?;
        let wrong = |_| Refusal::Bad("the ID has not 1 to 64 visible ASCII characters".to_owned());
        Ok(LockInfo { id: RequestId::from_str(&id).map_err(wrong)?, document })
    }
}

fn id_in(document: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(document).ok()?;
    value.get("ID")?.as_str().map(str::to_owned)
}

impl RequestId {
    /// Returns the proof of the session that holds the lock by this ID.
    fn proof(&self, lock: &LockName) -> Proof {
        Proof::without_password(format!("{}\0{}", lock.path(), self.as_str()).as_bytes())
    }
}

impl Api {
    /// Takes the lock for this ID if the lock is free and its queue is empty. If this ID already holds the
    /// lock, the request succeeds.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: the ID may hold the lock, for at most 10 s without another request.
    /// # Cancel safety
    /// Same as after `Unknown`.
    pub async fn lock_state(
        &self,
        caller: &Caller,
        lock: &LockName,
        info: &LockInfo,
    ) -> Result<StateLock, Refusal> {
        self.check_serving()?;
        for _ in 0..=MOVES_MAX {
            match self.find_state_lock(caller, lock, &info.id).await? {
                LockStatus::Taken(by) => return Ok(StateLock::Taken(by)),
                LockStatus::Own(holder) => {
                    if self
                        .keep_for_long(caller, &Secret::of_node(holder.session, info.id.proof(lock)))
                        .await?
                    {
                        return Ok(StateLock::Held(Claim { path: holder.path.into(), token: holder.token }));
                    }
                }
                LockStatus::Free => self.take_state_lock(caller, lock, info).await?,
            }
        }
        Err(Refusal::Unknown)
    }

    /// Releases the lock. Repeating the request is no error unless another client holds the lock meanwhile.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: repeat the request.
    pub async fn unlock_state(
        &self,
        caller: &Caller,
        lock: &LockName,
        info: &LockInfo,
    ) -> Result<Unlocked, Refusal> {
        self.check_serving()?;
        match self.find_state_lock(caller, lock, &info.id).await? {
            LockStatus::Free => Ok(Unlocked::Done(false)),
            LockStatus::Taken(by) => Ok(Unlocked::Taken(by)),
            LockStatus::Own(holder) => {
                let secret = Secret::of_node(holder.session, info.id.proof(lock));
                let claim = Claim { path: holder.path.into(), token: holder.token };
                let released = Call::new(self, caller)
                    .act(&secret, Command::Client(Request::Release([claim].into())))
                    .await;
                self.close_unused(caller, &secret).await;
                match released {
                    Ok(Response::Held(held)) => Ok(Unlocked::Done(held.contains(&true))),
                    Err(Refusal::LeaseOver) => Ok(Unlocked::Done(false)),
                    Err(refusal) => Err(refusal),
                    Ok(other) => unreachable!("a release tells what was held: {other:?}"),
                }
            }
        }
    }

    /// Takes the lock away from its holder. Returns the holder's token, or `None` if the lock was free. The
    /// caller checks the permission.
    ///
    /// # Errors
    /// Same as [`Api::force`].
    pub async fn force_state(
        &self,
        caller: &Caller,
        lock: &LockName,
    ) -> Result<Option<FencingToken>, Refusal> {
        self.check_serving()?;
        Call::new(self, caller).sync().await?;
        let holder = {
            let state = self.context.replica.state.read();
            let holder = state.lock_queue(lock.path()).and_then(|queue| queue.holders().next());
            holder.map(|holder| (id_of(&state, caller, &holder), holder))
        };
        let Some((id, holder)) = holder else { return Ok(None) };
        let forced = self.force(caller, lock, holder.token).await?;
        if let Some(id) = id {
            self.close_unused(caller, &Secret::of_node(holder.session, id.proof(lock))).await;
        }
        Ok(forced.then_some(holder.token))
    }

    async fn find_state_lock(
        &self,
        caller: &Caller,
        lock: &LockName,
        id: &RequestId,
    ) -> Result<LockStatus, Refusal> {
        Call::new(self, caller).sync().await?;
        let state = self.context.replica.state.read();
        let Some(queue) = state.lock_queue(lock.path()) else { return Ok(LockStatus::Free) };
        if let Some(own) = queue.holders().find(|holder| is_of(holder, id)) {
            return Ok(LockStatus::Own(own));
        }
        let first = queue.holders().next().or_else(|| queue.waiters().next());
        Ok(LockStatus::Taken(first.map_or_else(
            || shown(lock.path(), "the lock-delay of its last holder", "", state.time_ms()),
            |first| said_of(&state, caller, lock, &first),
        )))
    }

    /// Makes one attempt with a short session. The caller reads the result from the state afterwards.
    pub(super) async fn take_state_lock(
        &self,
        caller: &Caller,
        lock: &LockName,
        info: &LockInfo,
    ) -> Result<(), Refusal> {
        let acquire = Acquire {
            lock: lock.path().into(),
            prefix: info.id.prefix(SessionId::NONE, Mode::Exclusive).into(),
            data: Some(info.document.clone()),
            acl: Some(Acl::shared_open()),
            mode: Mode::Exclusive,
            limit: 0,
            wait: false,
            owner: Owner::Unnamed,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            min_hold_ms: 0,
            min_hold_lapses: false,
        };
        let secret = self.open_for_node(caller, TTL_MS, (Opener::StateLock, info.id.proof(lock))).await?;
        let outcome =
            Call::new(self, caller).act(&secret, Command::Client(Request::Acquire([acquire].into()))).await;
        let refused = match outcome {
            Ok(Response::QueuePositions(states)) => match states.into_iter().next() {
                Some(QueuePosition::Held(_)) => return Ok(()),
                // Another client was faster; the caller checks the lock again.
                Some(QueuePosition::Busy { .. }) | None => Ok(()),
                Some(QueuePosition::LimitIs(limit)) => Err(Refusal::Limit(limit)),
                Some(other) => unreachable!("nobody waits here: {other:?}"),
            },
            Err(Refusal::Unknown) => return Err(Refusal::Unknown),
            // The cluster stalled for longer than the session timeout; the caller checks the lock again.
            Err(Refusal::LeaseOver) => return Ok(()),
            Err(refusal) => Err(refusal),
            Ok(other) => unreachable!("an acquire tells of its places: {other:?}"),
        };
        self.close_unused(caller, &secret).await;
        refused
    }

    /// Extends the session timeout to [`STATE_LOCK_MS`]. Returns false if the session has ended or moved; the
    /// caller then finds the lock again.
    async fn keep_for_long(&self, caller: &Caller, secret: &Secret) -> Result<bool, Refusal> {
        let mut call = Call::new(self, caller);
        let lease = match call.find(secret).await {
            Ok(lease) if lease.ttl_ms == STATE_LOCK_MS => return Ok(true),
            Ok(lease) => lease,
            Err(Refusal::LeaseOver) => return Ok(false),
            Err(refusal) => return Err(refusal),
        };
        let command = Command::Reattach {
            from: Some(lease.attachment),
            session: lease.session,
            proof: secret.proof(),
            timeout_ms: STATE_LOCK_MS,
        };
        let nobody = (SessionId::NONE, Attachment::default());
        match call.submit(nobody.0, nobody.1, command).await?.result {
            Ok(_) => Ok(true),
            Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired) => Ok(false),
            Err(code) => Err(Refusal::of(code)),
        }
    }
}

fn is_of(place: &ContenderView, id: &RequestId) -> bool {
    paths::name(&place.path).starts_with(&id.start(SessionId::NONE))
}

/// Returns the visible part of another client's position.
fn said_of(state: &Machine, caller: &Caller, lock: &LockName, place: &ContenderView) -> Value {
    match state.get_data(&place.path, &caller.identities) {
        Ok((data, _)) => document_in(data).unwrap_or_else(|| described(place)),
        Err(_) => shown(lock.path(), "a client that this caller may not see", "", place.requested_ms),
    }
}

/// Returns the ID of a Terraform position, if the caller may read the position's data.
fn id_of(state: &Machine, caller: &Caller, place: &ContenderView) -> Option<RequestId> {
    let (data, _) = state.get_data(&place.path, &caller.identities).ok()?;
    let id = id_in(&data?)?.parse().ok()?;
    is_of(place, &id).then_some(id)
}

/// Parses the lock info in the data of a queue znode.
fn document_in(data: Option<Bytes>) -> Option<Value> {
    let data = data?;
    id_in(&data).and_then(|_| serde_json::from_slice(&data).ok())
}

/// Formats the position of a client other than Terraform as a lock info.
fn described(place: &ContenderView) -> Value {
    let who = if place.address.is_empty() { place.session.to_string() } else { place.address.clone() };
    let info = format!("token {}: {}", place.token.0, String::from_utf8_lossy(&place.label));
    shown(&place.path, &info, &who, place.granted_ms.unwrap_or(place.requested_ms))
}

fn shown(path: &str, info: &str, who: &str, since_ms: i64) -> Value {
    json!({
        "ID": "", "Operation": "", "Info": info, "Who": who, "Version": "",
        "Created": moment::rfc3339(since_ms), "Path": path,
    })
}
