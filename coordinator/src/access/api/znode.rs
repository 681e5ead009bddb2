//! Reads of znodes in the local state, and the writes of the ZooKeeper protocol.
//!
//! A write with a lease belongs to the lease's session and may carry a request id, so a retry takes effect
//! once. Each replicated write needs a session: a write without a lease opens a session for itself.

use std::str::FromStr;

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::Claim;
use rowlock_proto::request::{Create, Op, SetData};
use rowlock_proto::response::OpResult;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, SessionId, Stat, Version, path as paths};
use rowlock_state::Machine;
use rowlock_state::command::Command;
use tokio::sync::OwnedSemaphorePermit;

use super::call::Call;
use super::lock::holder;
use super::request_id::RequestId;
use super::{Api, Caller, LockName, Refusal, Secret};
use crate::limits::{API_ANSWERS_MAX_BYTES, API_DATA_MAX_BYTES, API_PAGE_MAX_BYTES};

/// TTL of the session of a write without a lease, in milliseconds; clamped to the shortest session timeout.
const TTL_MS: u32 = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodePath(String);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Not older than the request.
    #[default]
    Sync,
    /// Present state of this node: may lag behind the leader; changes appear in order.
    Local,
}

/// Range of children's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Returns names greater than `after`; empty: from the first name.
    pub after: String,
    pub most: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Children {
    pub names: Vec<String>,
    pub is_more: bool,
    pub stat: Stat,
}

#[derive(Clone, Debug)]
pub enum Change {
    Create {
        data: Bytes,
        /// Lifetime of the znode, and whether its name gets a number.
        mode: CreateMode,
        ttl_ms: Option<i64>,
        /// Empty: open to all clients.
        acl: Vec<Acl>,
    },
    Set {
        data: Bytes,
        version: Version,
    },
    Delete {
        version: Version,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Path, including the sequence number.
    Created(String, Stat),
    /// Stat after the write.
    Set(Stat),
    Deleted,
}

/// Session and preconditions of a write.
#[derive(Clone, Debug, Default)]
pub struct By {
    pub secret: Option<Secret>,
    /// Client's name of the write; a retry with the same id takes effect once.
    pub request_id: Option<String>,
    /// Precondition: this token holds this lock.
    pub fence: Option<(LockName, FencingToken)>,
}

impl ZnodePath {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the path of a sequential create: the path may end in a slash.
    ///
    /// # Errors
    /// [`Refusal::Bad`]: not a path.
    pub fn sequential(path: &str) -> Result<ZnodePath, Refusal> {
        paths::validate_sequential(path).map_err(|e| wrong(path, e))?;
        Ok(ZnodePath(path.to_owned()))
    }
}

fn wrong(path: &str, why: impl std::fmt::Display) -> Refusal {
    Refusal::Bad(format!("{path:?} is not the path of a znode: {why}"))
}

impl FromStr for ZnodePath {
    type Err = Refusal;

    fn from_str(path: &str) -> Result<Self, Refusal> {
        paths::validate(path).map_err(|e| wrong(path, e))?;
        Ok(ZnodePath(path.to_owned()))
    }
}

impl Change {
    /// Returns whether the change needs a lease: an ephemeral znode lives as long as its session.
    fn is_of_lease(&self) -> bool {
        matches!(self, Change::Create { mode, .. } if mode.is_ephemeral())
    }

    /// Returns the kind of the change. The kind and the path distinguish changes with equal request ids.
    fn word(&self) -> &'static str {
        match self {
            Change::Create { .. } => "create",
            Change::Set { .. } => "set",
            Change::Delete { .. } => "delete",
        }
    }

    fn command(self, path: &ZnodePath) -> Command {
        Command::Client(match self.operation(path) {
            Op::Create(create) => Request::Create(create),
            Op::Create2(create) => Request::Create2(create),
            Op::CreateContainer(create) => Request::CreateContainer(create),
            Op::CreateTtl(create, ttl_ms) => Request::CreateTtl(create, ttl_ms),
            Op::SetData(set) => Request::SetData(set),
            Op::Delete { path, version } => Request::Delete { path, version },
            Op::Check { .. } => unreachable!("a check is no change"),
        })
    }

    fn operation(self, path: &ZnodePath) -> Op {
        let path = path.0.clone();
        match self {
            Change::Create { data, mode, ttl_ms, acl } => {
                let acl = if acl.is_empty() { Acl::shared_open() } else { acl.into() };
                let create = Create { path, data: Some(data), acl: Some(acl), flags: mode.flags() };
                match ttl_ms {
                    Some(ttl_ms) => Op::CreateTtl(create, ttl_ms),
                    None => Op::Create2(create),
                }
            }
            Change::Set { data, version } => Op::SetData(SetData { path, data: Some(data), version }),
            Change::Delete { version } => Op::Delete { path, version },
        }
    }
}

impl Api {
    /// Reserves budget for the bytes of a request or reply. Dropping the permit frees the budget.
    ///
    /// # Errors
    /// [`Refusal::Full`].
    pub fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        assert!(bytes <= API_ANSWERS_MAX_BYTES, "{bytes} bytes never have room");
        let bytes = u32::try_from(bytes).expect("Invariant: it is below the bound");
        let room = self.bytes.clone().try_acquire_many_owned(bytes);
        room.map_err(|_| Refusal::Full("too many bytes of znodes are on their way through this node"))
    }

    /// Returns data and Stat. Null data become empty data.
    ///
    /// # Errors
    /// [`Refusal::NoZnode`], [`Refusal::NotPermitted`].
    pub async fn znode(
        &self,
        caller: &Caller,
        path: &ZnodePath,
        consistency: Consistency,
    ) -> Result<(Bytes, Stat), Refusal> {
        let read = |state: &Machine| state.get_data(&path.0, &caller.identities);
        let (data, stat) = self.read_when_fresh(caller, consistency, read).await?;
        Ok((data.unwrap_or_default(), stat))
    }

    /// Returns one page of the children's names.
    ///
    /// # Errors
    /// Same as [`Self::znode`].
    pub async fn children(
        &self,
        caller: &Caller,
        path: &ZnodePath,
        (consistency, page): (Consistency, &Page),
    ) -> Result<Children, Refusal> {
        let most = (page.most, API_PAGE_MAX_BYTES);
        let read = |state: &Machine| state.get_children_after(&path.0, &page.after, most, &caller.identities);
        let (names, is_more, stat) = self.read_when_fresh(caller, consistency, read).await?;
        Ok(Children { names, is_more, stat })
    }

    /// Returns the ACL; password digests only for callers with ADMIN.
    ///
    /// # Errors
    /// Same as [`Self::znode`].
    pub async fn acl(
        &self,
        caller: &Caller,
        path: &ZnodePath,
        consistency: Consistency,
    ) -> Result<(Vec<Acl>, Stat), Refusal> {
        self.read_when_fresh(caller, consistency, |state| state.get_acl(&path.0, &caller.identities)).await
    }

    async fn read_when_fresh<T>(
        &self,
        caller: &Caller,
        consistency: Consistency,
        read: impl Fn(&Machine) -> Result<T, rowlock_proto::ErrorCode>,
    ) -> Result<T, Refusal> {
        self.check_serving()?;
        if decides!("znode-read-is-synced", consistency == Consistency::Sync) {
            Call::new(self, caller).sync().await?;
        }
        read(&self.context.replica.state.read()).map_err(Refusal::of)
    }

    /// Changes a znode. A copy of a request with a request id gets the outcome of the first copy and changes
    /// nothing.
    ///
    /// # Errors
    /// [`Refusal::Stale`]: the fence's token no longer holds the lock. [`Refusal::Unknown`]: the change may
    /// have happened; a retry is safe with a request id.
    /// # Cancel safety
    /// Same as after `Unknown`.
    pub async fn change(
        &self,
        caller: &Caller,
        path: &ZnodePath,
        (change, by): (Change, By),
    ) -> Result<Changed, Refusal> {
        self.check_serving()?;
        let word = change.word();
        let By { secret, request_id, fence } = by;
        if secret.is_none() && (change.is_of_lease() || request_id.is_some()) {
            let what = "an ephemeral znode and an Idempotency-Key need a lease: the header Rowlock-Lease";
            return Err(Refusal::Bad(what.to_owned()));
        }
        let id = request_id.map(|id| id.parse::<RequestId>()).transpose()?;
        // Distinct from the attempt of a lock: no path contains a zero byte, and each lock's path begins with
        // a slash.
        let attempt = id.map(|id| id.attempt(&format!("{word}\0{}", path.0), false));
        let mut call = Call::new(self, caller);
        let session = match (&secret, &fence) {
            (Some(secret), Some(_)) => match call.find(secret).await {
                Err(Refusal::LeaseOver) => SessionId::NONE,
                found => found?.session,
            },
            _ => SessionId::NONE,
        };
        let command = match &fence {
            None => change.command(path),
            Some(fence) => match self.claim_of(&mut call, fence, (session, &caller.identities)).await? {
                Some(claim) => Command::Fenced { claim, change: change.operation(path) },
                // The first copy may have been executed while the token held the lock.
                None => {
                    let kept = attempt.and_then(|attempt| call.remembered(session, attempt));
                    let is_open = || self.context.replica.state.read().session(session).is_some();
                    let remembers = decides!("outcomes-are-remembered", attempt.is_none() || is_open());
                    let stale = if remembers { Refusal::Stale } else { Refusal::StaleCopy };
                    return kept.map_or(Err(stale), changed);
                }
            },
        };
        let outcome = match (&secret, attempt) {
            (Some(secret), Some(attempt)) => call.act_once(secret, attempt, &command).await?,
            (Some(secret), None) => call.act(secret, command).await?,
            (None, _) => {
                let secret = self.open(caller, TTL_MS).await?.secret;
                let done = call.act(&secret, command).await;
                self.close_unused(caller, &secret).await;
                done?
            }
        };
        changed(outcome)
    }

    /// Finds the position that holds the lock by this token in the local state. If there is none, the call
    /// first applies all committed changes.
    async fn claim_of(
        &self,
        call: &mut Call<'_>,
        (lock, token): &(LockName, FencingToken),
        reader: (SessionId, &[Id]),
    ) -> Result<Option<Claim>, Refusal> {
        let find = || holder(&self.context.replica.state.read(), (lock, *token), reader);
        if let Some(claim) = find()? {
            return Ok(Some(claim));
        }
        call.sync().await?;
        find()
    }
}

fn changed(outcome: Response) -> Result<Changed, Refusal> {
    match outcome {
        Response::PathStat(path, stat) => Ok(Changed::Created(path, stat)),
        Response::Stat(stat) => Ok(Changed::Set(stat)),
        Response::Empty => Ok(Changed::Deleted),
        Response::Multi(results) => match &results[..] {
            [OpResult::Error(Some(ErrorCode::NoNode)), _] => Err(Refusal::Stale),
            [OpResult::Error(Some(code)), _] | [_, OpResult::Error(Some(code))] => Err(Refusal::of(*code)),
            [_, OpResult::Create2(path, stat)] => Ok(Changed::Created(path.clone(), *stat)),
            [_, OpResult::SetData(stat)] => Ok(Changed::Set(*stat)),
            [_, OpResult::Delete] => Ok(Changed::Deleted),
            other => unreachable!("a fenced change has other results: {other:?}"),
        },
        other => unreachable!("a change of a znode has another outcome: {other:?}"),
    }
}

/// Parses an ACL entry in the format of ZooKeeper's shell: `ip:10.0.0.0/8:cdrwa`.
///
/// # Errors
/// [`Refusal::Bad`].
pub fn acl_entry(text: &str) -> Result<Acl, Refusal> {
    let wrong = || Refusal::Bad(format!("{text:?} is no entry of an ACL: write SCHEME:ID:RIGHTS, of cdrwa"));
    let (who, rights) = text.rsplit_once(':').ok_or_else(wrong)?;
    let (scheme, id) = who.split_once(':').ok_or_else(wrong)?;
    let mut perms = 0;
    for right in rights.chars() {
        let at = RIGHTS.iter().find(|(letter, _)| *letter == right).ok_or_else(wrong)?;
        perms |= at.1;
    }
    Ok(Acl { perms, id: Id { scheme: scheme.to_owned(), id: id.to_owned() } })
}

/// Formats an ACL entry, in the format of [`acl_entry`].
pub fn acl_text(entry: &Acl) -> String {
    let rights = RIGHTS.iter().filter(|(_, perm)| entry.perms & perm != 0).map(|(letter, _)| letter);
    format!("{}:{}:{}", entry.id.scheme, entry.id.id, rights.collect::<String>())
}

/// Permissions in the order of ZooKeeper's shell.
const RIGHTS: [(char, i32); 5] = {
    use rowlock_proto::acl::perms::{ADMIN, CREATE, DELETE, READ, WRITE};
    [('c', CREATE), ('d', DELETE), ('r', READ), ('w', WRITE), ('a', ADMIN)]
};

// A single request always fits into the empty budget.
const _: () = assert!(API_DATA_MAX_BYTES <= API_ANSWERS_MAX_BYTES);
const _: () = assert!(API_PAGE_MAX_BYTES <= API_ANSWERS_MAX_BYTES);
