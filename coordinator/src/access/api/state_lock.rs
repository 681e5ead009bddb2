//! Locks of Terraform's and OpenTofu's states: places in the queues that all clients share.
//!
//! Those programs give no signs of life. So the place is that of a session which may be silent for
//! [`STATE_LOCK_MS`]. The session is a short one until it holds the lock: what an attempt leaves behind that
//! breaks off is soon gone. No client gets the secret of the session. A program shows the lock's ID in every
//! request, and its token must allow it to use the lock: then the node that it asks acts for the session,
//! which it knows by a proof that no password is known for.
//!
//! Must never do: tell a caller more of another client's place than its ACL allows.

use std::str::FromStr;

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner, PlaceState};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, path as paths};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::{ContenderView, Machine, Proof};
use rowlock_types::limits::STATE_LOCK_MS;
use serde_json::{Value, json};

use super::call::{Call, MOVES_MAX};
use super::request_id::RequestId;
use super::{Api, Caller, LockName, Refusal, Secret};
use crate::moment;
use crate::zk::Opener;

const FOLDER: &str = "/locks/@terraform";
/// The lease of an attempt until it holds the lock, milliseconds.
const TTL_MS: u32 = 10_000;

/// A lock info: a document with at least an `ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    id: RequestId,
    document: Bytes,
}

/// The result of a request for the lock of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateLock {
    /// It is held by this ID.
    Held(Claim),
    /// Another client holds it or is queued before: its label.
    Taken(Value),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlocked {
    /// Whether it was held by this ID; otherwise it was free.
    Done(bool),
    /// Another client holds it.
    Taken(Value),
}

enum LockStatus {
    Free,
    /// Held by this ID.
    Own(ContenderView),
    Taken(Value),
}

/// The lock of the state of this name.
///
/// # Errors
/// [`Refusal::Bad`]: it is no name.
pub fn state_lock(name: &str) -> Result<LockName, Refusal> {
    LockName::below(FOLDER, name)
}

impl LockInfo {
    /// Reads the lock info that a client sent.
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
    /// Returns the proof of the session that holds a lock by this ID.
    fn proof(&self, lock: &LockName) -> Proof {
        Proof::without_password(format!("{}\0{}", lock.path(), self.as_str()).as_bytes())
    }
}

impl Api {
    /// Takes the lock for this ID, if it is free and has no queue. An ID that holds it already is told
    /// so: repeating it is no error.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: it may be held, for 10 s at the most unless it is asked for again.
    /// # Cancel safety
    /// As after `Unknown`.
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

    /// Gives it back. Repeating it is no error, unless another client has the lock by now.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: repeat it.
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

    /// Takes the lock away from its holder; whether there was one, and its token. The caller checks the
    /// permission.
    ///
    /// # Errors
    /// As [`Api::force`].
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

    /// One attempt, by a session that is soon over. What it has led to is looked for afterwards.
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
            Ok(Response::PlaceStates(states)) => match states.into_iter().next() {
                Some(PlaceState::Held(_)) => return Ok(()),
                // Another client was faster; check the lock again.
                Some(PlaceState::Busy { .. }) | None => Ok(()),
                Some(PlaceState::LimitIs(limit)) => Err(Refusal::Limit(limit)),
                Some(other) => unreachable!("nobody waits here: {other:?}"),
            },
            Err(Refusal::Unknown) => return Err(Refusal::Unknown),
            // It lasts no longer than a stall of the cluster: check the lock again.
            Err(Refusal::LeaseOver) => return Ok(()),
            Err(refusal) => Err(refusal),
            Ok(other) => unreachable!("an acquire tells of its places: {other:?}"),
        };
        self.close_unused(caller, &secret).await;
        refused
    }

    /// Lets the session be silent for [`STATE_LOCK_MS`]. False: it has ended or moved, so look again.
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

/// Returns the visible part of the place before the caller's.
fn said_of(state: &Machine, caller: &Caller, lock: &LockName, place: &ContenderView) -> Value {
    match state.get_data(&place.path, &caller.identities) {
        Ok((data, _)) => document_in(data).unwrap_or_else(|| described(place)),
        Err(_) => shown(lock.path(), "a client that this caller may not see", "", place.requested_ms),
    }
}

/// The ID by which a program of this kind has the place, as far as the caller may know.
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

/// Describes the place of any other client as a lock info.
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
