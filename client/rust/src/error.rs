//! What can go wrong, and what the caller may conclude from it.
//!
//! Two questions decide what to do after an error: *may the request have taken effect?*
//! ([`Error::may_have_happened`]) and *is it worth trying again on this client?* ([`Error::is_retryable`]).

use rowlock_proto::ErrorCode;
use rowlock_proto::name::NameRule;
use rowlock_proto::path::PathError;

use crate::connect_error::{OTHER_CLUSTER, PLAINTEXT_PASSWORD};
use crate::party::Party;

/// Why a call on a [`crate::Client`] or a lock failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with an error: the request had no effect.
    #[error("refused by the server: {0}")]
    Rejected(#[source] ErrorCode),
    /// One operation of a [`crate::Transaction`] was refused: none of them had an effect.
    #[error("operation {index} of the transaction was refused: {code}")]
    TransactionRejected {
        /// Position of the operation that was refused, from 0.
        index: usize,
        /// Why the server refused it.
        #[source]
        code: ErrorCode,
    },
    /// The connection broke between request and reply: **the request may have taken effect**.
    #[error("connection lost before the reply: the request may have taken effect")]
    ConnectionLoss,
    /// The session has ended (by the server, or by its local deadline): its ephemeral znodes, locks and
    /// watches are gone. The request was not sent. [`crate::Client::renew`] opens a new session.
    #[error("the session has expired")]
    SessionExpired,
    /// [`crate::Client::close`] was called. The request was not sent.
    #[error("the client is closed")]
    Closed,
    /// A credential was refused; the session is closed.
    #[error("authentication failed")]
    AuthFailed,
    /// The cluster does nothing for a session that has presented no credential; the session is closed. The
    /// request had no effect. Give [`crate::ClientBuilder::auth`] one, or `ROWLOCK_AUTH`.
    #[error("the cluster requires authentication, and no credential was presented")]
    AuthRequired,
    /// A credential was not sent, since the connection is a plain one to another machine:
    /// [`crate::ClientBuilder::allow_plaintext_passwords`]. The session goes on without it.
    #[error("{}", PLAINTEXT_PASSWORD)]
    PlaintextPassword,
    /// The servers belong to another cluster than those on which the session was opened, or than
    /// [`crate::ClientBuilder::cluster_id`] says; the session is closed. The request had no effect.
    #[error("{OTHER_CLUSTER}")]
    OtherCluster,
    /// The runtime on which [`crate::ClientBuilder::connect`] ran has ended, or the session's task panicked:
    /// the session, its locks and ephemeral znodes are given up. The request was not sent.
    /// [`crate::Client::renew`] opens a new session, on the runtime where it is called.
    #[error("the runtime that served the client has ended, and the session with it")]
    Stopped,
    /// This process was forked from the one that opened the session, whose connection it must not touch:
    /// nothing is held here, nothing was sent. [`crate::Client::renew`] opens a session of this process's
    /// own.
    #[error("the client belongs to the process that this one was forked from")]
    Forked,
    /// The total time given to [`crate::Mutex::lock_timeout`] is over; the queue has been left.
    #[error("timed out waiting for the lock{}", place(*.position, .holder.as_deref()))]
    Timeout {
        /// The last known place in the queue; 0 is the holder's. `None`: the queue was never seen.
        position: Option<usize>,
        /// The last known holder's znode name.
        holder: Option<String>,
    },
    /// Another client deleted our znode while we waited in the queue.
    #[error("the queue znode was deleted by somebody else")]
    PlaceLost,
    /// Waiting would have closed a circle of owners that wait for each other: the queue was not entered. Each
    /// of these waits for the next one, and the last for us. Give something back before trying again.
    #[error("deadlock detected: {}", circle(.cycle))]
    Deadlock {
        /// The parties, each waiting for the next.
        cycle: Vec<Party>,
    },
    /// The semaphore has another number of permits than was said, or fewer than were asked for.
    #[error("the semaphore has {actual} permits")]
    LimitConflict {
        /// Number of permits that the semaphore has.
        actual: u32,
    },
    /// The server cannot do this (plain ZooKeeper, or an older Rowlock). Nothing has been done.
    #[error("not supported by this server: {0}")]
    Unsupported(&'static str),
    /// The lock is not held (any more), so it can be neither converted nor given back. Nothing has been
    /// changed.
    #[error("the lock is not held")]
    NotHeld,
    /// The request is larger than the server takes (data, label, meta, the paths of many locks). It was not
    /// sent.
    #[error("the request has {bytes} bytes, the server takes {max}")]
    TooLarge {
        /// Size of the request's frame.
        bytes: usize,
        /// The most that is sent in one request.
        max: usize,
    },
    /// One connection after the other broke while this request was the first one without an answer, so that
    /// it may be the cause: **it may have taken effect**. Other requests of the session go on.
    #[error("given up: {connections} connections broke over this request, which may have taken effect")]
    GivenUp {
        /// Number of connections that broke.
        connections: u32,
    },
    /// Too many locks are held, awaited or being released on this session at once.
    #[error("too many locks in use on one session")]
    TooManyLocks,
    /// The name of a lock (or several of them together, or a path) cannot be used.
    #[error("invalid lock name: {0}")]
    InvalidName(#[from] NameError),
    /// Others hold the lock, or wait for it. Nothing has been changed.
    #[error("others hold the lock or wait for it")]
    Busy,
    /// That candidate does not wait for this lead (any more). Nothing has been changed.
    #[error("the candidate does not wait for this lead")]
    NotWaiting,
    /// The number that was given cannot be used.
    #[error("invalid argument: {0}")]
    InvalidArgument(&'static str),
    /// Others use this latch or double barrier with another count; nothing was changed.
    #[error("others use it with a count of {0}")]
    CountIs(u32),
    /// Others changed the counter at each of our tries; nothing was changed.
    #[error("too much contention on this znode; retry")]
    Contended,
    /// The sum does not fit into an `i64`; nothing was changed.
    #[error("the sum is out of range")]
    Overflow,
    /// The znode at this path holds something that the recipe has not written; nothing was changed.
    #[error("unexpected data in {0}")]
    UnexpectedData(String),
    /// No answer came within the operation timeout ([`crate::Client::operation_timeout`]): **the request may
    /// have taken effect**.
    #[error("no answer in time: the request may have taken effect")]
    NoAnswer,
    /// The reply does not fit the request: a bug on one side. The request may have taken effect.
    #[error("unexpected reply: {0}")]
    Protocol(&'static str),
}

impl Error {
    /// The request may have taken effect although it failed. Before repeating one that is not idempotent,
    /// look.
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

    /// The same call on the same client may succeed later without anybody changing anything.
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

    /// The server's code, if it refused the request.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Rejected(code) | Error::TransactionRejected { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The session is over: nothing succeeds on this client any more.
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

/// Why a name cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text breaks a rule for names.
    #[error(transparent)]
    Rule(#[from] NameRule),
    /// The root cannot be a lock or anything else that is shared.
    #[error("the root cannot be a lock")]
    Root,
    /// The path is not a valid one.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Several locks at once: none, or too many.
    #[error("{count} locks at once, 1 to {max} allowed")]
    Count {
        /// How many were named.
        count: usize,
        /// The most that one request may name.
        max: usize,
    },
    /// Several locks at once: one of them twice.
    #[error("{0} is named twice")]
    Twice(String),
}

/// A queue place, as far as the client knows it.
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

/// What could not be done with a guard, which therefore comes back as it was: by
/// [`crate::WriteGuard::downgrade`], [`crate::ReadGuard::try_upgrade`], [`crate::Leadership::transfer_to`].
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
    /// As it was; whether it is still held, it says itself.
    pub guard: G,
    /// Why it was not converted.
    #[source]
    pub error: Error,
}

impl<G> Kept<G> {
    pub(crate) fn new(guard: G, error: Error) -> Self {
        Kept { guard, error }
    }

    /// The same, with the guard as `wrap` makes it.
    pub(crate) fn map<H>(self, wrap: impl FnOnce(G) -> H) -> Kept<H> {
        Kept { guard: wrap(self.guard), error: self.error }
    }
}

/// The cause alone; the guard is dropped.
impl<G> From<Kept<G>> for Error {
    fn from(kept: Kept<G>) -> Self {
        kept.error
    }
}

/// Why [`crate::Guard::release`] did not report success. In either case the guard is gone and the application
/// must not touch what the lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock was lost before the release: others may have worked under it meanwhile.
    #[error("the lock was no longer held")]
    NotHeld,
    /// The session ended before the release was acknowledged: the lock is free or soon will be, but whether
    /// it was held until the release cannot be known.
    #[error("the session ended before the release was acknowledged")]
    Unknown,
}

/// The lock was lost while [`crate::Guard::run`] ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lock was lost: {reason}")]
pub struct LockLost {
    /// Why it was lost.
    #[source]
    pub reason: LostReason,
}

/// Why a lock is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The server said that the session has expired.
    #[error("the session has expired")]
    Expired,
    /// The local deadline passed: no server acknowledged a heartbeat in time. The server may still list the
    /// lock for a moment, but soon may grant it to another.
    #[error("no heartbeat was acknowledged in time")]
    Unreachable,
    /// Another client deleted the holder's znode, or the lock was revoked while we were cut off.
    #[error("the lock's znode was deleted by somebody else")]
    Deleted,
    /// An operator released the lock by force.
    #[error("the release was forced by somebody")]
    ForceReleased,
    /// The server took the lock back: it was held for longer than its maximum, or than a question allowed.
    #[error("the lock was revoked: held for longer than its maximum, or than it was asked for")]
    Revoked,
    /// An operator asked for the lock within a time that is over ([`crate::Question::deadline`]). The lock is
    /// given back when the guard is dropped, and taken away soon after if it is not.
    #[error("an operator asked for the lock, and the time to give it back is over")]
    Asked,
    /// It was held for its maximum, so the guard gave it back by itself.
    #[error("held for its maximum")]
    MaxHold,
    /// The guard was released or dropped.
    #[error("the guard gave it back")]
    Released,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
    /// The runtime that served the client has ended, or its task panicked.
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
