//! Failures of calls on single znodes. A refusal for lack of a permission names the right and the lock, as
//! for commands on locks, or the znode whose ACL refuses.

use rowlock_client::{Client, Error};
use rowlock_proto::{ErrorCode, Right, SessionId};
use rowlock_state::rules::{RULES_PATH, is_below_base, lock_of};

use crate::cluster::failed;
use crate::exit::Failure;
use crate::superuser;

/// A failed call on a znode.
pub(super) struct ZnodeCall<'a> {
    pub path: &'a str,
    pub kind: CallKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    Read,
    Create,
    CreateSequential,
    Set,
    Delete,
}

/// ZnodeCall on a path with its error. Commands on trees fail at any of the tree's znodes.
#[derive(Debug)]
pub struct FailedAt {
    pub path: String,
    pub kind: CallKind,
    pub error: Error,
}

impl ZnodeCall<'_> {
    /// Returns the failure of the call. After a version conflict, fetches the znode's present version for the
    /// message; after a refusal, the rights on the lock.
    pub async fn refused(&self, client: &Client, error: &Error) -> Failure {
        let failure = failed(self.path, error);
        let reason = match error.code() {
            Some(ErrorCode::BadVersion) => self.version_conflict(client).await,
            Some(ErrorCode::NoAuth) => self.not_permitted(client).await,
            _ => None,
        };
        match reason {
            Some(reason) => Failure::new(failure.code, format!("{}: {reason}", self.path)),
            None => failure,
        }
    }

    async fn version_conflict(&self, client: &Client) -> Option<String> {
        let stat = client.exists(self.path).await.ok()??;
        Some(format!("version conflict: its version is {}", stat.version.0))
    }

    async fn not_permitted(&self, client: &Client) -> Option<String> {
        if self.path == RULES_PATH {
            return Some(superuser::REMEDY.to_owned());
        }
        let lock = client.mutex_at(self.lock()).server_path();
        let access = client.rights_on(&lock, None).await.ok()?;
        let right = match self.kind {
            CallKind::Read => Right::See,
            CallKind::Create | CallKind::CreateSequential => Right::Take,
            CallKind::Set | CallKind::Delete => self.right_to_change(client).await,
        };
        let is_governed = access.rule.is_some() || access.guarded && is_below_base(&lock);
        match is_governed && !access.rights.contains(&right) {
            true => Some(right.missing_on(&lock)),
            false => Some(format!("not permitted by the ACL of {}", self.guardian())),
        }
    }

    /// Returns the lock that the znode belongs to. A sequential znode will be a place in its parent's queue.
    fn lock(&self) -> &str {
        match self.kind {
            CallKind::CreateSequential => parent(self.path),
            _ => lock_of(self.path),
        }
    }

    /// Returns the znode whose ACL permits the call.
    fn guardian(&self) -> &str {
        match self.kind {
            CallKind::Read | CallKind::Set => self.path,
            CallKind::Create | CallKind::CreateSequential | CallKind::Delete => parent(self.path),
        }
    }

    /// Returns the right that a change of the znode needs: more for another session's ephemeral, and for the
    /// deletion of a lock during its lock-delay. Goes by the name of a znode that the client may not see.
    async fn right_to_change(&self, client: &Client) -> Right {
        let is_place = match client.exists(self.path).await {
            Ok(Some(stat)) => stat.ephemeral_owner != SessionId::NONE,
            _ => self.lock() != self.path,
        };
        match is_place || self.kind == CallKind::Delete && self.is_delayed(client).await {
            true => Right::Force,
            false => Right::Take,
        }
    }

    async fn is_delayed(&self, client: &Client) -> bool {
        let queue = client.report_queue(&client.mutex_at(self.path).server_path(), 1).await;
        queue.is_ok_and(|queue| queue.delayed_until_ms.is_some())
    }
}

impl FailedAt {
    /// Returns the failure of a command on `path`; a refusal names the znode that was refused.
    pub async fn refused(&self, client: &Client, path: &str) -> Failure {
        let path = if self.error.code() == Some(ErrorCode::NoAuth) { &self.path } else { path };
        ZnodeCall { path, kind: self.kind }.refused(client, &self.error).await
    }
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((parent, _)) if !parent.is_empty() => parent,
        _ => "/",
    }
}
