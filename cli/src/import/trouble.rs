//! Errors that stop an import, and retries of requests that need not stop an import.

use std::future::Future;

use rowlock_client::{Error, ErrorCode};
use rowlock_env::time;

use super::limits::PAUSE;
use super::snapshot::SnapshotError;
use crate::cluster::failed;
use crate::exit::{Failure, IO, REFUSED};

/// EX_DATAERR: the snapshot is no snapshot, or damaged.
pub const DATA: u8 = 65;

/// Cause of the failure; the caller reports what exists.
#[derive(Debug)]
pub enum ImportError {
    Source(SnapshotError),
    Request(String, Error),
    /// A request about a path of the source failed.
    SourceRequest(String, Error),
    /// The source lists a child with an impossible name.
    BadName {
        path: String,
        name: String,
        why: String,
    },
    /// The cluster does not accept an ACL, or lets the import create nothing below it.
    Acl(String),
    /// Another client created or changed a znode during the import.
    Conflict(String),
    /// Znodes read back differ from the source: the first differences.
    Different(Vec<String>),
    Interrupted(&'static str),
}

impl From<SnapshotError> for ImportError {
    fn from(e: SnapshotError) -> Self {
        ImportError::Source(e)
    }
}

impl ImportError {
    pub fn at(path: &str) -> impl FnOnce(Error) -> ImportError {
        let path = path.to_owned();
        move |e| ImportError::Request(path, e)
    }

    pub fn failure(&self) -> Failure {
        match self {
            ImportError::Source(e) => Failure::new(exit_code(e), format!("the source {e}")),
            ImportError::Request(path, e) => failed(path, e),
            ImportError::SourceRequest(path, Error::Rejected(ErrorCode::NoAuth)) => Failure::new(
                REFUSED,
                format!(
                    "{path}: the source does not show all of it; present a credential that may read data and ACLs of \
                     everything (super) with --from-auth digest:USER:PASSWORD"
                ),
            ),
            ImportError::SourceRequest(path, Error::Rejected(ErrorCode::MarshallingError)) => Failure::new(
                DATA,
                format!(
                    "the source, {path}: its answer is not in ZooKeeper's protocol, or has names that are not UTF-8; \
                     rename these znodes, or import a snapshot with --from-snapshot"
                ),
            ),
            ImportError::BadName { path, name, why } => Failure::new(
                DATA,
                format!("the source, {path}: it lists a child {name:?}, which cannot be imported: {why}"),
            ),
            ImportError::SourceRequest(path, e) => failed(&format!("the source, {path}"), e),
            ImportError::Acl(text) | ImportError::Conflict(text) => Failure::new(REFUSED, text),
            ImportError::Different(first) => {
                Failure::new(REFUSED, format!("znodes read back differ: {}", first.join("; ")))
            }
            ImportError::Interrupted(signal) => {
                let number = if *signal == "SIGINT" { 2 } else { 15 };
                Failure::new(128 + number, format!("interrupted by {signal}"))
            }
        }
    }
}

/// Returns the exit code for an unreadable source.
pub fn exit_code(e: &SnapshotError) -> u8 {
    if matches!(e, SnapshotError::Io(_)) { IO } else { DATA }
}

/// Returns true if the request may succeed later, or may have succeeded.
pub fn is_open(e: &Error) -> bool {
    e.is_retryable() || e.may_have_happened()
}

/// Retries an idempotent request and returns the last result. Ends no later than the session.
pub async fn retry<T, F>(mut request: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match request().await {
            Err(e) if is_open(&e) => time::sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}
