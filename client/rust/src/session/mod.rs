//! One session: what it is to the outside ([`SessionState`]), and what the handles tell its task
//! ([`Action`]).
//!
//! Flow: handles and [`crate::connection`], the session's task, feed commands, frames and the clock into
//! [`machine::Machine`], which decides; [`core::Core`], which they share, then does what the machine said.
//! The machine never reads a clock, never does IO and never completes a call by itself.

pub(crate) mod attachment;
pub(crate) mod core;
pub(crate) mod deadline;
pub(crate) mod extensions;
pub(crate) mod lock_states;
pub(crate) mod machine;
pub(crate) mod watches;
pub(crate) mod znode_removal;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_env::{decides, process};
use rowlock_proto::{Request, Response, SessionId};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::connect_error::AttemptError;
use crate::error::{Error, LostReason};
use crate::settings::Credential;

use extensions::Extensions;
use lock_states::LockStateCell;
use watches::WatchRequest;
use znode_removal::ZnodeRemoval;

/// State of a session, for the application ([`crate::Client::states`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionState {
    /// No server has opened the session yet.
    Connecting,
    /// Attached to a server.
    Connected,
    /// Cut off, trying other servers. Locks and ephemeral znodes **are still ours** until `until`; new calls
    /// wait.
    Suspended {
        /// The local deadline: unless a server answers before, the session is [`SessionState::Expired`] then.
        until: Instant,
    },
    /// Over: locks, ephemeral znodes and watches are gone. Final.
    Expired,
    /// Over at our own wish, because a credential was refused, or because the client's runtime has ended.
    /// Final.
    Closed,
}

impl SessionState {
    /// No other state follows.
    pub fn is_final(self) -> bool {
        matches!(self, SessionState::Expired | SessionState::Closed)
    }
}

/// Follows the state of a session: made by [`crate::Client::states`]. It sees the latest state; one that
/// lasted only for a moment may be left out.
///
/// ```no_run
/// # use rowlock_client::{Client, SessionState};
/// # async fn demo(client: Client) {
/// let mut states = client.states();
/// while let Some(state) = states.next().await {
///     println!("{state:?}");
/// }
/// println!("over: {:?}", states.current());
/// # }
/// ```
#[derive(Clone)]
pub struct SessionStates {
    states: watch::Receiver<SessionState>,
}

impl std::fmt::Debug for SessionStates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SessionStates").field(&self.current()).finish()
    }
}

impl SessionStates {
    /// Returns the latest state without waiting.
    pub fn current(&self) -> SessionState {
        *self.states.borrow()
    }

    /// There is a state that has not been seen here.
    pub fn has_changed(&self) -> bool {
        self.states.has_changed()
    }

    /// Waits for a state that has not been seen here. The state at the time of [`crate::Client::states`]
    /// counts as seen. `None`: the last one was final.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost.
    pub async fn next(&mut self) -> Option<SessionState> {
        if self.current().is_final() && !self.states.has_changed() {
            return None;
        }
        self.states.changed().await.ok()?;
        Some(*self.states.borrow_and_update())
    }

    /// Waits until the state, this one or a later one, is one that `wanted` accepts. `None`: the session
    /// ended in another one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&SessionState) -> bool) -> Option<SessionState> {
        let mut seen = SessionState::Connecting;
        let is_wanted_or_final = |state: &SessionState| {
            seen = *state;
            state.is_final() || wanted(state)
        };
        self.states.wait_for(is_wanted_or_final).await.ok()?;
        wanted(&seen).then_some(seen)
    }
}

/// End of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A server said so.
    Expired,
    /// No heartbeat was acknowledged before the local deadline.
    DeadlinePassed,
    Closed,
    /// A credential was refused.
    AuthFailed,
    /// A server does nothing for a session that has presented no credential.
    AuthRequired,
    /// No server was reached over a connection on which a credential may be sent. Only before the session is
    /// opened.
    PlaintextPassword,
    /// The servers belong to another cluster than the previous servers or the configured cluster.
    OtherCluster,
    /// The task that served it is gone: its runtime has ended, or it panicked.
    Stopped,
}

impl Ending {
    pub(crate) fn error(self) -> Error {
        match self {
            Ending::Expired | Ending::DeadlinePassed => Error::SessionExpired,
            Ending::Closed => Error::Closed,
            Ending::AuthFailed => Error::AuthFailed,
            Ending::AuthRequired => Error::AuthRequired,
            Ending::PlaintextPassword => Error::PlaintextPassword,
            Ending::OtherCluster => Error::OtherCluster,
            Ending::Stopped => Error::Stopped,
        }
    }

    /// Result of a later close: an error unless the servers know that the session is over.
    pub(crate) fn of_close(self) -> Result<(), Error> {
        match self {
            Ending::Expired
            | Ending::Closed
            | Ending::AuthFailed
            | Ending::AuthRequired
            | Ending::PlaintextPassword => Ok(()),
            Ending::DeadlinePassed | Ending::OtherCluster | Ending::Stopped => Err(self.error()),
        }
    }

    pub(crate) fn state(self) -> SessionState {
        match self {
            Ending::Expired | Ending::DeadlinePassed => SessionState::Expired,
            Ending::Closed
            | Ending::AuthFailed
            | Ending::AuthRequired
            | Ending::PlaintextPassword
            | Ending::OtherCluster
            | Ending::Stopped => SessionState::Closed,
        }
    }

    pub(crate) fn lost(self) -> LostReason {
        match self {
            Ending::Expired => LostReason::Expired,
            Ending::DeadlinePassed => LostReason::Unreachable,
            Ending::Closed
            | Ending::AuthFailed
            | Ending::AuthRequired
            | Ending::PlaintextPassword
            | Ending::OtherCluster => LostReason::Closed,
            Ending::Stopped => LostReason::Stopped,
        }
    }
}

/// State that the session's task publishes to its handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vitals {
    pub state: SessionState,
    pub session: SessionId,
    /// The negotiated session timeout.
    pub timeout: Duration,
    /// Until when the session is certainly alive. Moves without waking anybody.
    pub valid_until: Option<Instant>,
    /// Number of times that a server has accepted the session; after a change, watches and lists must be read
    /// again.
    pub attachments: u64,
    /// Extensions of the latest probed server.
    pub extensions: Option<Extensions>,
    pub ending: Option<Ending>,
}

impl Vitals {
    pub(crate) fn new() -> Self {
        Vitals {
            state: SessionState::Connecting,
            session: SessionId::NONE,
            timeout: Duration::ZERO,
            valid_until: None,
            attachments: 0,
            extensions: None,
            ending: None,
        }
    }
}

/// The view of a session that handles and guards share.
pub(crate) struct Shared {
    vitals: watch::Sender<Vitals>,
    states: watch::Sender<SessionState>,
    /// Failure of the last connection, for the error of `connect`.
    pub last_fault: watch::Sender<Option<AttemptError>>,
    /// Failure of the last connection to each server, by index in the random order.
    pub faults: watch::Sender<BTreeMap<usize, AttemptError>>,
    /// The process that it belongs to.
    process: u32,
}

impl Shared {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Shared::of_process(process::id()))
    }

    fn of_process(process: u32) -> Self {
        let (vitals, _) = watch::channel(Vitals::new());
        let (states, _) = watch::channel(SessionState::Connecting);
        let (last_fault, _) = watch::channel(None);
        let (faults, _) = watch::channel(BTreeMap::new());
        Shared { vitals, states, last_fault, faults, process }
    }

    /// Shows new vitals. Wakes watchers unless only the validity moved.
    fn publish(&self, new: Vitals) {
        let state = new.state;
        self.vitals.send_if_modified(|current| {
            current.valid_until = new.valid_until;
            let more_changed = *current != new;
            *current = new;
            more_changed
        });
        self.states.send_if_modified(|current| std::mem::replace(current, state) != state);
    }

    pub(crate) fn vitals(&self) -> Vitals {
        self.vitals.borrow().clone()
    }

    /// Reports the published end of the session.
    pub(crate) fn has_ended(&self) -> bool {
        self.vitals.borrow().ending.is_some()
    }

    pub(crate) fn watch_vitals(&self) -> watch::Receiver<Vitals> {
        self.vitals.subscribe()
    }

    pub(crate) fn watch_states(&self) -> SessionStates {
        SessionStates { states: self.states.subscribe() }
    }

    /// We are a child of the process that it belongs to: the session goes on there, and its connection is not
    /// ours.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != process::id()
    }

    /// Reason for treating the session as lost at this moment.
    ///
    /// Invariant: reads the clock itself, and is right even after a long stop of the session's task (a paused
    /// process, a busy runtime).
    pub(crate) fn lost(&self) -> Option<LostReason> {
        if self.is_forked() {
            return Some(LostReason::Stopped);
        }
        let vitals = self.vitals.borrow();
        match (vitals.ending, vitals.valid_until) {
            (Some(ending), _) => Some(ending.lost()),
            (None, Some(until))
                if decides!("session-deadline-is-ahead", time::now() < until)
                    || mutant::is(Mutant::LostOnlyWhenTold) =>
            {
                None
            }
            (None, _) => {
                rare::taken(Rare::ClientPastDeadline);
                Some(LostReason::Unreachable)
            }
        }
    }

    /// The session's task is gone without a word: whatever it showed is over.
    fn stop(&self) {
        let mut last = self.vitals();
        if last.ending.is_none() {
            let ending = Ending::Stopped;
            (last.ending, last.state, last.valid_until) = (Some(ending), ending.state(), None);
            self.publish(last);
        }
    }

    /// The error of calls on a session that has ended.
    pub(crate) fn ended(&self) -> Error {
        if self.is_forked() {
            return Error::Forked;
        }
        // The task that ends lets go of the session before it can tell why. It always tells of another ending
        // before.
        self.vitals.borrow().ending.unwrap_or(Ending::Stopped).error()
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub response: Response,
}

pub(crate) type ReplySender = oneshot::Sender<Result<Reply, Error>>;

/// A request of the application.
pub(crate) struct Call {
    pub request: Request,
    pub reply: ReplySender,
    pub watch: Option<WatchRequest>,
    /// Cells for the queue znodes in the reply of an acquire or convert, in the order of the reply.
    pub cells: Vec<Arc<LockStateCell>>,
    /// Its share of [`crate::limits::OUTSTANDING_REQUESTS`].
    pub _permit: Option<OwnedSemaphorePermit>,
}

/// Action for the session's task. All actions share a queue: a removal posted by a drop stays behind the
/// create.
pub(crate) enum Action {
    Call(Box<Call>),
    /// A further credential, for this and all later connections.
    Auth(Credential, oneshot::Sender<Result<(), Error>>),
    /// Take a queue znode back; retried until it is gone or the session is.
    Removal(ZnodeRemoval),
    Close(oneshot::Sender<Result<(), Error>>),
}

/// The right to a session: the session's number and password, with which another process can take it over.
/// Its text form, for a process that goes on with the session or ends it when its owner is gone, has the
/// password of the session: it belongs into pipes and files of mode 0600, not into arguments or logs.
///
/// A ticket is for one successor: it counts the session's writes until it was made, and a client that takes
/// over by an older ticket can only close the session.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionTicket {
    pub(crate) id: SessionId,
    pub(crate) password: Bytes,
    /// Number of the last write that takes effect once.
    pub(crate) writes: u64,
}

impl SessionTicket {
    /// Returns the text form: the session's number, the password and the number of writes in hexadecimal,
    /// with dots between them.
    pub fn reveal(&self) -> String {
        let password: String = self.password.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:x}.{password}.{:x}", self.id.0, self.writes)
    }
}

impl fmt::Debug for SessionTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionTicket({}, password not shown)", self.id)
    }
}

/// The text is not that of a [`SessionTicket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the text of a session ticket")]
pub struct NoTicket;

impl FromStr for SessionTicket {
    type Err = NoTicket;

    fn from_str(text: &str) -> Result<Self, NoTicket> {
        let mut parts = text.split('.');
        let (Some(id), Some(password), Some(writes), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NoTicket);
        };
        let id = i64::from_str_radix(id, 16).map_err(|_| NoTicket)?;
        let writes = u64::from_str_radix(writes, 16).map_err(|_| NoTicket)?;
        if password.is_empty() || !password.is_ascii() || password.len() % 2 == 1 {
            return Err(NoTicket);
        }
        let byte = |at: usize| u8::from_str_radix(&password[at..at + 2], 16).map_err(|_| NoTicket);
        let password = (0..password.len()).step_by(2).map(byte).collect::<Result<Vec<u8>, _>>()?;
        Ok(SessionTicket { id: SessionId(id), password: password.into(), writes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_moves_the_validity_without_waking_anybody() {
        let shared = Shared::new();
        let watcher = shared.watch_vitals();
        let until = time::now() + Duration::from_secs(5);
        shared.publish(Vitals { valid_until: Some(until), ..Vitals::new() });
        assert!(!watcher.has_changed());
        assert_eq!(shared.vitals().valid_until, Some(until));
        shared.publish(Vitals { state: SessionState::Connected, ..Vitals::new() });
        assert!(watcher.has_changed());
    }

    #[test]
    fn a_call_that_finds_the_task_gone_before_it_has_told_why_hears_that_it_stopped() {
        let shared = Shared::new();
        assert_eq!(shared.ended(), Error::Stopped);
        shared.publish(Vitals { ending: Some(Ending::Closed), ..Vitals::new() });
        shared.stop();
        assert_eq!(shared.ended(), Error::Closed, "what was told first counts");
    }

    #[test]
    fn a_session_without_a_deadline_in_the_future_is_lost() {
        let shared = Shared::new();
        assert_eq!(shared.lost(), Some(LostReason::Unreachable));
        shared.publish(Vitals { valid_until: Some(time::now() + Duration::from_secs(60)), ..Vitals::new() });
        assert_eq!(shared.lost(), None);
        shared.publish(Vitals { valid_until: Some(time::now()), ..Vitals::new() });
        assert_eq!(shared.lost(), Some(LostReason::Unreachable));
    }

    #[test]
    fn a_ticket_is_read_back_from_its_text_and_shows_no_password() {
        let password = Bytes::from_static(&[0, 255, 16]);
        let ticket = SessionTicket { id: SessionId(0x1ab), password, writes: 26 };
        assert_eq!(ticket.reveal(), "1ab.00ff10.1a");
        assert_eq!(ticket.reveal().parse(), Ok(ticket.clone()));
        assert!(!format!("{ticket:?}").contains("00ff10"));
        for wrong in ["", "1ab", "1ab.00", "1ab..1", "1ab.0.1", "x.00.1", "1ab.zz.1", "1ab.00.", "1ab.00.1.1"]
        {
            assert_eq!(wrong.parse::<SessionTicket>(), Err(NoTicket), "{wrong}");
        }
    }
}
