//! Errors of calls and locks, with the conclusions that the caller may draw.
//!
//! Two questions decide the next step after an error: *may the request have taken effect?*
//! ([`Error::may_have_happened`]) and *is a retry on this client useful?* ([`Error::is_retryable`]).

use rowlock_proto::ErrorCode;
use rowlock_proto::name::NameRule;
use rowlock_proto::path::PathError;

use crate::connect_error::{OTHER_CLUSTER, PLAINTEXT_PASSWORD};
use crate::party::Party;

/// Failure of a call on a [`crate::Client`] or a lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with an error: the request had no effect.
    #[error("refused by the server: {0}")]
    Rejected(#[source] ErrorCode),
    /// The server refused an operation of a [`crate::Transaction`]: no operation had an effect.
    #[error("operation {index} of the transaction was refused: {code}")]
    TransactionRejected {
        /// Position of the refused operation, from 0.
        index: usize,
        /// Error code of the server.
        #[source]
        code: ErrorCode,
    },
    /// The connection broke between request and reply: **the request may have taken effect**.
    #[error("connection lost before the reply: the request may have taken effect")]
    ConnectionLoss,
    /// The session has ended, by the server or at the local deadline, along with the session's ephemeral
    /// znodes, locks and watches. The request was not sent. [`crate::Client::renew`] opens a new session.
    #[error("the session has expired")]
    SessionExpired,
    /// [`crate::Client::close`] was called. The request was not sent.
    #[error("the client is closed")]
    Closed,
    /// A server refused a credential; the session is closed.
    #[error("authentication failed")]
    AuthFailed,
    /// The cluster refuses sessions without a credential; the session is closed. The request had no effect.
    /// Present a credential by [`crate::ClientBuilder::auth`] or `ROWLOCK_AUTH`.
    #[error("the cluster requires authentication, and no credential was presented")]
    AuthRequired,
    /// The client did not send a credential over a plain connection to another machine:
    /// [`crate::ClientBuilder::allow_plaintext_passwords`]. The session goes on without the credential.
    #[error("{}", PLAINTEXT_PASSWORD)]
    PlaintextPassword,
    /// The servers belong to another cluster than the cluster of the session or of
    /// [`crate::ClientBuilder::cluster_id`]; the session is closed. The request had no effect.
    #[error("{OTHER_CLUSTER}")]
    OtherCluster,
    /// The runtime that ran [`crate::ClientBuilder::connect`] has ended, or the session's task panicked: the
    /// session, its locks and its ephemeral znodes are lost. The request was not sent.
    /// [`crate::Client::renew`] opens a new session, on the caller's runtime.
    #[error("the runtime that served the client has ended, and the session with it")]
    Stopped,
    /// This process was forked from the process that opened the session, and must not touch the parent's
    /// connection: this process holds nothing and sent nothing. [`crate::Client::renew`] opens a session for
    /// this process.
    #[error("the client belongs to the process that this one was forked from")]
    Forked,
    /// The timeout of [`crate::Mutex::lock_timeout`] is over; the client has left the queue.
    #[error("timed out waiting for the lock{}", place(*.position, .holder.as_deref()))]
    Timeout {
        /// The last known position in the queue; 0 is the holder. `None`: the client never saw the queue.
        position: Option<usize>,
        /// The last known holder's znode name.
        holder: Option<String>,
    },
    /// Another client deleted our znode while the request was in the queue.
    #[error("the queue znode was deleted by somebody else")]
    PlaceLost,
    /// Waiting would have closed a cycle of owners in which each owner waits for the next and the last for
    /// us: the client did not enter the queue. Release a lock before trying again.
    #[error("deadlock detected: {}", circle(.cycle))]
    Deadlock {
        /// The parties, each waiting for the next.
        cycle: Vec<Party>,
    },
    /// The semaphore's number of permits differs from the requested limit, or is below the requested count.
    #[error("the semaphore's number of permits is {actual}")]
    LimitConflict {
        /// Number of permits of the semaphore.
        actual: u32,
    },
    /// The server lacks the operation (plain ZooKeeper, or an older Rowlock). Nothing has changed.
    #[error("not supported by this server: {0}")]
    Unsupported(&'static str),
    /// The guard no longer holds the lock, and can neither convert nor release the lock. Nothing has changed.
    #[error("the lock is not held")]
    NotHeld,
    /// The request exceeds the server's limit (data, label, meta, the paths of many locks). The request was
    /// not sent.
    #[error("the request has {bytes} bytes, the server takes {max}")]
    TooLarge {
        /// Size of the request's frame.
        bytes: usize,
        /// Largest request that the client sends, in bytes.
        max: usize,
    },
    /// Several connections in a row broke while this request was the oldest without an answer, and the
    /// request may be the cause: **the request may have taken effect**. Other requests of the session go on.
    #[error("given up: {connections} connections broke over this request, which may have taken effect")]
    GivenUp {
        /// Number of broken connections.
        connections: u32,
    },
    /// Too many locks are held, awaited or being released on this session at once.
    #[error("too many locks in use on one session")]
    TooManyLocks,
    /// The name or path of a lock, or a list of names, is invalid.
    #[error("invalid lock name: {0}")]
    InvalidName(#[from] NameError),
    /// Other clients hold the lock or wait for the lock. Nothing has changed.
    #[error("others hold the lock or wait for it")]
    Busy,
    /// The candidate no longer waits for this leadership. Nothing has changed.
    #[error("the candidate does not wait for this lead")]
    NotWaiting,
    /// An argument is out of range.
    #[error("invalid argument: {0}")]
    InvalidArgument(&'static str),
    /// Other clients use this latch or double barrier with another count; nothing has changed.
    #[error("others use it with a count of {0}")]
    CountIs(u32),
    /// Other clients changed the counter at each of our attempts; nothing has changed.
    #[error("too much contention on this znode; retry")]
    Contended,
    /// The sum does not fit into an `i64`; nothing has changed.
    #[error("the sum is out of range")]
    Overflow,
    /// The znode at this path holds data of another writer than the recipe; nothing has changed.
    #[error("unexpected data in {0}")]
    UnexpectedData(String),
    /// No answer came within the operation timeout ([`crate::Client::operation_timeout`]): **the request may
    /// have taken effect**.
    #[error("no answer in time: the request may have taken effect")]
    NoAnswer,
    /// The reply does not match the request: a bug on either side. The request may have taken effect.
    #[error("unexpected reply: {0}")]
    Protocol(&'static str),
}

impl Error {
    /// Reports that the request may have taken effect although the call failed. Check the state before
    /// repeating a request that is not idempotent.
    pub fn may_have_happened(&self) -> bool {
        use ErrorCode::{ConnectionLoss, OperationTimeout, RequestTimeout, SystemError};
        match self {
            Error::ConnectionLoss | Error::NoAnswer | Error::GivenUp { .. } | Error::Protocol(_) => true,
            Error::Rejected(code) => {
                matches!(code, ConnectionLoss | OperationTimeout | RequestTimeout | SystemError)
            }
            _ => false,
        }
    }

    /// Reports that the same call on the same client may succeed later without any other change.
    pub fn is_retryable(&self) -> bool {
        use ErrorCode::{ConnectionLoss, OperationTimeout, RequestTimeout, SessionMoved, ThrottledOp};
        match self {
            Error::ConnectionLoss | Error::NoAnswer | Error::TooManyLocks | Error::Contended => true,
            Error::Rejected(code) => {
                matches!(
                    code,
                    ConnectionLoss | OperationTimeout | RequestTimeout | SessionMoved | ThrottledOp
                )
            }
            _ => false,
        }
    }

    /// Error code of the server's refusal.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Rejected(code) | Error::TransactionRejected { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Reports the end of the session: every further call on this client fails.
    pub fn is_session_end(&self) -> bool {
        matches!(
            self,
            Error::SessionExpired
                | Error::Closed
                | Error::AuthFailed
                | Error::AuthRequired
                | Error::OtherCluster
                | Error::Stopped
                | Error::Forked
        )
    }
}

/// Reason for refusing a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text breaks a rule for names.
    #[error(transparent)]
    Rule(#[from] NameRule),
    /// The root cannot be a lock or any other shared object.
    #[error("the root cannot be a lock")]
    Root,
    /// The path is invalid.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A list of locks is empty or too long.
    #[error("{count} locks at once, 1 to {max} allowed")]
    Count {
        /// Number of named locks.
        count: usize,
        /// Largest number of locks in a request.
        max: usize,
    },
    /// A list of locks names a lock twice.
    #[error("{0} is named twice")]
    Twice(String),
}

/// Formats a queue position and its holder, each if known.
fn place(position: Option<usize>, holder: Option<&str>) -> String {
    let place = position.map(|position| format!("place {} in the queue", position + 1));
    let holder = holder.map(|holder| format!("held by {holder}"));
    match [place, holder].into_iter().flatten().collect::<Vec<_>>() {
        known if known.is_empty() => String::new(),
        known => format!(" ({})", known.join(", ")),
    }
}

fn circle(cycle: &[Party]) -> String {
    let names: Vec<String> =
        cycle.iter().map(|party| format!("{:?} at {}", party.label, party.path)).collect();
    names.join(" waits for ")
}

/// Failed operation on a guard, together with the unchanged guard: of [`crate::WriteGuard::downgrade`],
/// [`crate::ReadGuard::try_upgrade`], [`crate::Leadership::transfer_to`].
///
/// ```no_run
/// # async fn demo(guard: rowlock_client::WriteGuard) -> Result<(), rowlock_client::ReleaseError> {
/// use rowlock_client::Kept;
///
/// match guard.downgrade().await {
///     Ok(reader) => reader.release().await,
///     Err(Kept { guard, error }) => {
///         println!("still the writer: {error}");
///         guard.release().await
///     }
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Kept<G> {
    /// The unchanged guard; ask the guard for the state of the lock.
    pub guard: G,
    /// Cause of the failure.
    #[source]
    pub error: Error,
}

impl<G> Kept<G> {
    pub(crate) fn new(guard: G, error: Error) -> Self {
        Kept { guard, error }
    }

    pub(crate) fn map<H>(self, wrap: impl FnOnce(G) -> H) -> Kept<H> {
        Kept { guard: wrap(self.guard), error: self.error }
    }
}

/// Keeps the cause and drops the guard.
impl<G> From<Kept<G>> for Error {
    fn from(kept: Kept<G>) -> Self {
        kept.error
    }
}

/// Failure of [`crate::Guard::release`]. In either case the guard is gone and the application must not touch
/// the protected resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The guard had lost the lock before the release: other holders may have worked in the meantime.
    #[error("the lock was no longer held")]
    NotHeld,
    /// The session ended before the servers acknowledged the release: the lock is free or soon will be, but
    /// the client cannot know about a loss before the release.
    #[error("the session ended before the release was acknowledged")]
    Unknown,
}

/// The lock was lost while [`crate::Guard::run`] ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lock was lost: {reason}")]
pub struct LockLost {
    /// Reason for the loss.
    #[source]
    pub reason: LostReason,
}

/// Reason for the loss of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The server reported the expiry of the session.
    #[error("the session has expired")]
    Expired,
    /// The local deadline passed: no server acknowledged a heartbeat in time. The server may still list the
    /// lock for a moment, and may soon grant the lock to another client.
    #[error("no heartbeat was acknowledged in time")]
    Unreachable,
    /// Another client deleted the holder's znode, or the lock was revoked while we were cut off.
    #[error("the lock's znode was deleted by somebody else")]
    Deleted,
    /// An operator released the lock by force.
    #[error("the release was forced by somebody")]
    ForceReleased,
    /// The server revoked the lock: the hold exceeded the maximum, or the deadline of an operator's request.
    #[error("the lock was revoked: held for longer than its maximum, or than it was asked for")]
    Revoked,
    /// The deadline of an operator's request for the lock has passed ([`crate::Question::deadline`]). The
    /// client releases the lock when the guard is dropped; the server revokes the lock soon after.
    #[error("an operator asked for the lock, and the time to give it back is over")]
    Asked,
    /// The hold reached the maximum, and the guard released the lock by itself.
    #[error("held for its maximum")]
    MaxHold,
    /// The guard was released or dropped.
    #[error("the guard gave it back")]
    Released,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
    /// The runtime of the client has ended, or the client's task panicked.
    #[error("the runtime that served the client has ended")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connection_loss_and_its_like_leave_the_outcome_open() {
        assert!(Error::ConnectionLoss.may_have_happened());
        assert!(Error::Rejected(ErrorCode::OperationTimeout).may_have_happened());
        assert!(!Error::Rejected(ErrorCode::NoNode).may_have_happened());
        assert!(!Error::SessionExpired.may_have_happened());
        assert!(!Error::Rejected(ErrorCode::SessionMoved).may_have_happened());
    }

    #[test]
    fn what_was_refused_has_not_happened_and_waits_for_somebody_to_change_something() {
        let refusals = [
            Error::Deadlock { cycle: Vec::new() },
            Error::LimitConflict { actual: 3 },
            Error::Unsupported("x"),
            Error::NotHeld,
        ];
        for refusal in refusals {
            assert!(!refusal.may_have_happened() && !refusal.is_retryable() && !refusal.is_session_end());
        }
    }

    #[test]
    fn a_deadlock_names_everybody_in_it() {
        let party =
            |label: &str| Party { label: label.to_owned(), path: format!("/l/{label}"), ..Party::default() };
        let error = Error::Deadlock { cycle: vec![party("a"), party("b")] };
        assert!(error.to_string().ends_with(r#""a" at /l/a waits for "b" at /l/b"#), "{error}");
    }

    #[test]
    fn the_end_of_a_session_is_not_retryable() {
        for end in [
            Error::SessionExpired,
            Error::Closed,
            Error::AuthFailed,
            Error::AuthRequired,
            Error::OtherCluster,
            Error::Stopped,
        ] {
            assert!(end.is_session_end() && !end.is_retryable());
        }
        assert!(Error::ConnectionLoss.is_retryable());
        assert!(!Error::Rejected(ErrorCode::NodeExists).is_retryable());
    }
}
