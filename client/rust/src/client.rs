//! [`Client`]: the handle of a session. Clones are cheap and share the session, which a single task serves.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::task;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ClusterId, Request, SessionId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::builder::ClientBuilder;
use crate::connect_error::{ConfigError, ConnectError};
use crate::connection::Connection;
use crate::error::Error;
use crate::limits::{CREDENTIAL_BYTES, LOCK_SLOTS, OUTSTANDING_REQUESTS};
use crate::observer::Metering;
use crate::path;
use crate::servers::Servers;
use crate::session::core::{Core, SessionClosed};
use crate::session::extensions::Extensions;
use crate::session::lock_states::LockStateCell;
use crate::session::machine::Machine;
use crate::session::watches::WatchRequest;
use crate::session::znode_removal::ZnodeRemoval;
use crate::session::{
    Action, Call, Ending, Reply, SessionState, SessionStates, SessionTicket, Shared, Vitals,
};
use crate::settings::Credential;
#[cfg(feature = "tls")]
use crate::tls::Dialer;

/// Session with a cluster: znode calls, locks, state.
///
/// Clones share the session. The session ends with [`Client::close`], when the last clone (and the last
/// guard) is dropped, when a server reports the expiry, or at the local deadline. The client never replaces a
/// session by itself: see [`Client::renew`].
///
/// Requests of a session take effect in the order of the calls. While the connection is down, new calls wait
/// for the next connection, at most until the session ends.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// Time limit of this handle's calls.
    patience: Option<Duration>,
}

struct Inner {
    core: Arc<Core>,
    shared: Arc<Shared>,
    admission: Arc<Semaphore>,
    lock_slots: Arc<Semaphore>,
    config: ClientBuilder,
    /// Table of the recipe that shares state between its handles.
    shared_table: OnceLock<Arc<dyn Any + Send + Sync>>,
    metering: Metering,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.leave();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vitals = self.inner.shared.vitals();
        f.debug_struct("Client")
            .field("session", &vitals.session)
            .field("state", &vitals.state)
            .finish_non_exhaustive()
    }
}

/// Reply of a request that the session has accepted.
pub(crate) struct Pending {
    reply: oneshot::Receiver<Result<Reply, Error>>,
    shared: Arc<Shared>,
}

impl Future for Pending {
    type Output = Result<Reply, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = |shared: &Shared| Err(shared.ended());
        Pin::new(&mut self.reply).poll(cx).map(|reply| reply.unwrap_or_else(|_| ended(&self.shared)))
    }
}

impl Client {
    /// Opens a session, from a connect string with defaults for all else or from a builder.
    ///
    /// ```no_run
    /// # use rowlock_client::Client;
    /// # async fn demo() -> Result<(), rowlock_client::ConnectError> {
    /// let client = Client::connect("a:2181,b:2181,c:2181").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    /// # Cancel safety
    /// Dropping the future closes the connection and the session.
    pub async fn connect(to: impl Into<ClientBuilder>) -> Result<Client, ConnectError> {
        to.into().connect().await
    }

    /// A configuration to fill in and [`ClientBuilder::connect`].
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Reads the configuration from the environment: see [`ClientBuilder::from_env`].
    ///
    /// # Errors
    /// [`ConfigError`]: a variable has an invalid value.
    pub fn from_env() -> Result<ClientBuilder, ConfigError> {
        ClientBuilder::from_env()
    }

    pub(crate) async fn open(config: ClientBuilder) -> Result<Client, ConnectError> {
        #[cfg(feature = "tls")]
        let dialer = match config.tls.clone() {
            Some(tls) => Some(Dialer::open(tls).await?),
            None => None,
        };
        let shared = Shared::new();
        let machine = Machine::new(config.session_timeout, config.disconnect_grace, config.auth.clone());
        let machine = machine.of_cluster(config.cluster_id).of_session(config.ticket.clone(), time::now());
        let core = Core::new(machine, shared.clone());
        let admission = Arc::new(Semaphore::new(OUTSTANDING_REQUESTS));
        let connection = Connection {
            core: core.clone(),
            shared: shared.clone(),
            servers: Servers::new(config.endpoints.clone(), config.prefer_leader),
            session_timeout: config.session_timeout,
            allow_plaintext_passwords: config.allow_plaintext_passwords,
            kept_back: 0,
            #[cfg(feature = "tls")]
            dialer,
            admission: admission.clone(),
            done: Vec::new(),
        };
        // Not awaited: the task ends with the session, at the latest when the last handle is gone.
        drop(task::spawn("rowlock-session", connection.run()));
        let lock_slots = Arc::new(Semaphore::new(LOCK_SLOTS));
        let connect_timeout = config.connect_timeout;
        let shared_table = OnceLock::new();
        let metering = Metering::new(&config.observer);
        let inner = Arc::new(Inner { core, shared, admission, lock_slots, config, shared_table, metering });
        let client = Client { inner, patience: None };
        let mut vitals = client.watch_vitals();
        let opened = vitals.wait_for(|vitals| vitals.attachments > 0 || vitals.ending.is_some());
        let opened = time::timeout(connect_timeout, opened).await.is_ok();
        match client.vitals().ending {
            Some(Ending::AuthFailed) => Err(ConnectError::AuthFailed),
            Some(Ending::AuthRequired) => Err(ConnectError::AuthRequired),
            Some(Ending::PlaintextPassword) => Err(ConnectError::PlaintextPassword),
            Some(Ending::OtherCluster) => Err(ConnectError::OtherCluster),
            Some(Ending::Expired) => Err(ConnectError::SessionExpired),
            None if opened => Ok(client),
            _ => Err(ConnectError::Unreachable {
                endpoints: client.inner.config.endpoints.join(","),
                failures: client.inner.shared.faults.borrow().values().cloned().collect(),
                source: client.inner.shared.last_fault.borrow().clone(),
            }),
        }
    }

    /// Opens a fresh session with the same configuration after the loss of this session. Locks, ephemeral
    /// znodes and watches of the old session are gone.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub async fn renew(&self) -> Result<Client, ConnectError> {
        let config = ClientBuilder { ticket: None, ..self.inner.config.clone() };
        let client = config.connect().await?;
        Ok(Client { patience: self.patience, ..client })
    }

    /// Returns a handle of the same session whose calls are bounded by `patience`: znode calls, transactions,
    /// reports, and everything else that only the servers answer. A call that exceeds the bound fails with
    /// [`Error::NoAnswer`], and may have taken effect. Calls without a bound wait for the next connection
    /// until the session ends. The bound excludes waiting for a lock, which has a timeout of its own, and
    /// releasing a lock, which goes on in the background when the future is dropped.
    #[must_use]
    pub fn operation_timeout(&self, patience: Duration) -> Client {
        Client { inner: self.inner.clone(), patience: Some(patience) }
    }

    /// Id of the session, which `ephemeral_owner` shows to other clients.
    pub fn session_id(&self) -> SessionId {
        self.vitals().session
    }

    /// Returns the right to this session, for a process that ends the session after the death of this
    /// process. `None`: the session has ended.
    pub fn session_ticket(&self) -> Option<SessionTicket> {
        self.inner.core.ticket()
    }

    /// Ends this client without ending the session: held locks and ephemeral znodes stay without heartbeats,
    /// until the session timeout has passed since the last contact (servers may count it again after a change
    /// of leader). A client of the ticket ([`ClientBuilder::take_over`]) may go on or end the session before:
    /// for programs without a process that stays.
    ///
    /// The risk: no process learns of a loss. Note the time before [`ClientBuilder::connect`] and write
    /// nothing later than a session timeout after that time, or give every write the fencing token.
    ///
    /// The guards of this client are lost ([`crate::LostReason::Closed`]); dropping them releases nothing.
    ///
    /// # Errors
    /// The end of the session, or [`Error::Closed`]: the session is being closed.
    pub fn detach(&self) -> Result<SessionTicket, Error> {
        let ended = || self.vitals().ending.map_or(Error::Closed, Ending::error);
        self.inner.core.detach().ok_or_else(ended)
    }

    /// Id of the cluster. `None`: the servers report none, or the session has ended.
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.inner.core.cluster()
    }

    /// Session timeout granted by the server.
    pub fn session_timeout(&self) -> Duration {
        self.vitals().timeout
    }

    /// Returns the current state of the session.
    pub fn state(&self) -> SessionState {
        self.vitals().state
    }

    /// Follows the session's state.
    pub fn states(&self) -> SessionStates {
        self.inner.shared.watch_states()
    }

    /// Local deadline of the session, unless a server acknowledges a heartbeat before; monotonic and
    /// conservative. `None`: the session has ended.
    pub fn valid_until(&self) -> Option<Instant> {
        self.vitals().valid_until
    }

    /// Extensions of ZooKeeper's protocol that the server announced on the latest connection. Waits for the
    /// first announcement.
    ///
    /// # Errors
    /// The end of the session: [`Error::SessionExpired`], [`Error::Closed`], [`Error::AuthFailed`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn extensions(&self) -> Result<Extensions, Error> {
        if let Some(extensions) = self.vitals().extensions {
            return Ok(extensions);
        }
        let mut vitals = self.watch_vitals();
        let answered = |vitals: &Vitals| vitals.extensions.is_some() || vitals.ending.is_some();
        // An error means that the session's task is gone, which is an ending as well.
        let _ = vitals.wait_for(answered).await;
        self.vitals().extensions.ok_or_else(|| self.inner.shared.ended())
    }

    /// Ends the session; the session's ephemeral znodes and locks are gone when the call returns `Ok`.
    /// Further calls fail with [`Error::Closed`] at once; the servers complete earlier calls first.
    ///
    /// # Errors
    /// [`Error::ConnectionLoss`]: no server received the close before the session's local deadline, or before
    /// the client's runtime ended; the session expires by itself. [`Error::SessionExpired`],
    /// [`Error::Stopped`]: the session had ended before.
    /// # Cancel safety
    /// The close goes on when the future is dropped.
    pub async fn close(&self) -> Result<(), Error> {
        let (signal, closed) = oneshot::channel();
        let is_gone = self.inner.core.send(Action::Close(signal)).is_err();
        match closed.await {
            Ok(result) if !is_gone => result,
            _ if self.inner.shared.is_forked() => Err(Error::Forked),
            _ => self.vitals().ending.map_or(Ok(()), Ending::of_close),
        }
    }

    /// Presents a further credential, now and on every later connection.
    ///
    /// # Errors
    /// [`Error::AuthFailed`]: a server refused the credential, and the session is closed.
    /// [`Error::PlaintextPassword`]: the client did not send the credential, and the session goes on without.
    /// [`Error::TooLarge`].
    /// # Cancel safety
    /// Once polled, the credential is presented even when the future is dropped.
    pub async fn add_auth(
        &self,
        scheme: impl Into<String>,
        secret: impl Into<bytes::Bytes>,
    ) -> Result<(), Error> {
        let (signal, answered) = oneshot::channel();
        let credential = Credential { scheme: scheme.into(), secret: secret.into() };
        let (bytes, max) = (credential.bytes(), CREDENTIAL_BYTES);
        if bytes > max {
            return Err(Error::TooLarge { bytes, max });
        }
        self.inner
            .core
            .send(Action::Auth(credential, signal))
            .map_err(|SessionClosed| self.inner.shared.ended())?;
        answered.await.unwrap_or_else(|_| Err(self.inner.shared.ended()))
    }

    pub(crate) fn metering(&self) -> &Metering {
        &self.inner.metering
    }

    pub(crate) fn config(&self) -> &ClientBuilder {
        &self.inner.config
    }

    /// Returns the table that all handles of a recipe share; the type belongs to the recipe.
    pub(crate) fn shared_table<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let table = self.inner.shared_table.get_or_init(|| Arc::<T>::default());
        table.clone().downcast().expect("Invariant: a single recipe has a table")
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn vitals(&self) -> Vitals {
        self.inner.shared.vitals()
    }

    pub(crate) fn watch_vitals(&self) -> watch::Receiver<Vitals> {
        self.inner.shared.watch_vitals()
    }

    pub(crate) fn absolute(&self, path: &str) -> String {
        path::absolute(&self.inner.config.chroot, path)
    }

    pub(crate) fn relative(&self, path: String) -> String {
        path::relative(&self.inner.config.chroot, path)
    }

    pub(crate) fn within<'a>(&self, path: &'a str) -> &'a str {
        path::within(&self.inner.config.chroot, path)
    }

    /// Hands a request to the session. The return fixes the request's position in the session's order;
    /// dropping the future earlier (`submit` may wait for room) withdraws the request.
    pub(crate) async fn submit(
        &self,
        request: Request,
        watch: Option<WatchRequest>,
    ) -> Result<Pending, Error> {
        self.submit_followed(request, watch, Vec::new()).await
    }

    /// Works like [`Client::submit`], and follows the queue positions that the reply names from the arrival
    /// of the reply on.
    pub(crate) async fn submit_followed(
        &self,
        request: Request,
        watch: Option<WatchRequest>,
        cells: Vec<Arc<LockStateCell>>,
    ) -> Result<Pending, Error> {
        let shared = &self.inner.shared;
        if shared.has_ended() {
            return Err(shared.ended());
        }
        let admission = &self.inner.admission;
        let permit = match admission.clone().try_acquire_owned() {
            Ok(permit) => permit,
            // The calls of the process that we were forked from do not end here.
            Err(_) if shared.is_forked() => return Err(shared.ended()),
            Err(_) => admission.clone().acquire_owned().await.map_err(|_| shared.ended())?,
        };
        let (reply, receiver) = oneshot::channel();
        let call = Box::new(Call { request, reply, watch, cells, _permit: Some(permit) });
        self.inner.core.call(call).map_err(|SessionClosed| shared.ended())?;
        Ok(Pending { reply: receiver, shared: shared.clone() })
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Reply, Error> {
        self.submit(request, None).await?.await
    }

    /// [`Client::call`] within the operation timeout, if any.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, Error> {
        self.in_time(self.call(request)).await
    }

    /// Waits for the servers' answer, within the operation timeout if any.
    pub(crate) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.patience {
            None => answer.await,
            Some(patience) => time::timeout(patience, answer).await.unwrap_or(Err(Error::NoAnswer)),
        }
    }

    /// Reserves a slot for a lock attempt; the slot stays taken until the queue znode is gone.
    pub(crate) fn lock_slot(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.inner.lock_slots.clone().try_acquire_owned().map_err(|_| Error::TooManyLocks)
    }

    /// Posts a removal. Never blocks and needs no runtime: for drops.
    pub(crate) fn post(&self, removal: ZnodeRemoval) {
        // An error means that the session has ended, and the znode with it.
        let _ = self.inner.core.send(Action::Removal(removal));
    }
}
