//! [`Client`]: the session, for callers that block, and its znode calls. Each call on a znode waits for the
//! servers alone, so that the operation timeout applies.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{Acl, CreateMode, SessionId, Stat, Version, WatchedEvent, lock, report};

use super::handle::{Caller, Handle, calls};
use super::held::MultiGuard;
use super::locks::{
    AtomicCounter, Barrier, CountDownLatch, DoubleBarrier, Election, MultiLock, Mutex, ReentrantMutex,
    RwLock, Semaphore,
};
use crate::admin::{HistoryQuery, Members, Reconfig};
use crate::builder::ClientBuilder;
use crate::connect_error::ConnectError;
use crate::error::Error;
use crate::session::extensions::Extensions;
use crate::session::{SessionState, SessionTicket};
use crate::transaction::{Outcome, Transaction};
use crate::znode::{AccessList, Children, Created, Watched, Znode};

/// Session with a cluster, like [`crate::Client`]; clones share the session. The session ends with
/// [`Client::close`], when the last handle is dropped, when a server reports the expiry, or at the local
/// deadline.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) caller: Caller,
}

impl Client {
    /// Opens a session, as [`crate::Client::connect`], and starts the thread that serves it.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`]; [`ConnectError::Thread`].
    /// # Panics
    /// In async code, as every call of this module that blocks.
    pub fn connect(to: impl Into<ClientBuilder>) -> Result<Client, ConnectError> {
        Caller::connect(to.into().connect()).map(|caller| Client { caller })
    }

    /// [`Client::connect`] with the configuration that the environment gives: see
    /// [`ClientBuilder::from_env`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_from_env() -> Result<Client, ConnectError> {
        Client::connect(ClientBuilder::from_env()?)
    }

    /// Opens a fresh session with the same configuration and a thread of its own.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn renew(&self) -> Result<Client, ConnectError> {
        let client = Client::connect(self.caller.client().config().clone())?;
        Ok(match self.caller.patience() {
            Some(patience) => client.operation_timeout(patience),
            None => client,
        })
    }

    /// Returns a handle of the same session with a time limit for calls that wait only for the servers: znode
    /// calls, counters, releases, also of handles made by the new handle. A call that exceeds the limit fails
    /// with [`Error::NoAnswer`], and may have taken effect. Calls that wait for other clients have timeouts
    /// of their own.
    #[must_use]
    pub fn operation_timeout(&self, patience: Duration) -> Client {
        Client { caller: self.caller.with_patience(patience) }
    }

    pub(super) fn target(&self) -> &crate::Client {
        self.caller.client()
    }

    calls! { "Client" {
        get fn session_id() -> SessionId;
        get fn session_timeout() -> Duration;
        get fn state() -> SessionState;
        get fn valid_until() -> Option<Instant>;
        get fn new_owner() -> lock::Owner;
        get fn detach() -> Result<SessionTicket, Error>;
        ask fn close() -> ();
        ask fn extensions() -> Extensions;
        ask fn force_release(claim: &lock::Claim) -> bool;
        ask fn holds(claim: &lock::Claim) -> bool;
        ask fn release_claim(claim: &lock::Claim) -> bool;
        ask fn ask_holders(lock: &str, reason: &str, within: Option<Duration>) -> u32;
        ask fn report(path: &str) -> String;
        ask fn report_locks(limit: u32) -> report::Locks;
        ask fn report_queue(lock: &str, limit: u32) -> report::Queue;
        ask fn report_sessions(limit: u32) -> report::Sessions;
        ask fn report_history(query: &HistoryQuery) -> report::History;
        ask fn operate(what: &str) -> String;
        /// An operation timeout should be half a minute or more. After [`Error::NoAnswer`], look at
        /// `/zookeeper/config`.
        ask fn reconfig(change: &Reconfig) -> Members;
        make fn mutex(name: impl AsRef<str>) -> Mutex;
        make fn mutex_at(path: impl AsRef<str>) -> Mutex;
        make fn reentrant_mutex(name: impl AsRef<str>) -> ReentrantMutex;
        make fn reentrant_mutex_at(path: impl AsRef<str>) -> ReentrantMutex;
        make fn rwlock(name: impl AsRef<str>) -> RwLock;
        make fn rwlock_at(path: impl AsRef<str>) -> RwLock;
        make fn semaphore(name: impl AsRef<str>, limit: u32) -> Semaphore;
        make fn semaphore_at(path: impl AsRef<str>, limit: u32) -> Semaphore;
        make fn election(name: impl AsRef<str>) -> Election;
        make fn election_at(path: impl AsRef<str>) -> Election;
        make fn counter(name: impl AsRef<str>) -> AtomicCounter;
        make fn counter_at(path: impl AsRef<str>) -> AtomicCounter;
        make fn latch(name: impl AsRef<str>, count: u32) -> CountDownLatch;
        make fn latch_at(path: impl AsRef<str>, count: u32) -> CountDownLatch;
        make fn barrier(name: impl AsRef<str>) -> Barrier;
        make fn barrier_at(path: impl AsRef<str>) -> Barrier;
        make fn double_barrier(name: impl AsRef<str>, size: u32) -> DoubleBarrier;
        make fn double_barrier_at(path: impl AsRef<str>, size: u32) -> DoubleBarrier;
    } }

    /// Locks several names as one, as [`crate::Client::multi`] does.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        Handle::new(&self.caller, self.target().multi(names))
    }

    /// Locks several paths as one, as [`crate::Client::multi_at`] does.
    pub fn multi_at<P: AsRef<str>>(&self, paths: impl IntoIterator<Item = P>) -> MultiLock {
        Handle::new(&self.caller, self.target().multi_at(paths))
    }

    /// Takes several locks, all or none, as [`crate::Client::lock_all`].
    ///
    /// # Errors
    /// As there.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiGuard, Error> {
        self.multi(names).lock()
    }

    /// Waits until the session is in a state that `wanted` accepts, for at most `patience`; `None`: it did
    /// not get there.
    pub fn wait_state(
        &self,
        wanted: impl FnMut(&SessionState) -> bool,
        patience: Duration,
    ) -> Option<SessionState> {
        let mut states = self.caller.client().states();
        self.caller.wait(async move { time::timeout(patience, states.wait_for(wanted)).await.ok().flatten() })
    }

    /// The async client of this session, for what is only there; run its calls with [`Client::run`].
    pub fn async_client(&self) -> &crate::Client {
        self.caller.client()
    }

    /// Runs a future on the calling thread, while the session's thread serves its sockets and timers.
    ///
    /// # Panics
    /// In async code.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.caller.wait(future)
    }
}

/// A watch on one path: [`crate::OneshotWatch`].
#[derive(Debug)]
pub struct OneshotWatch {
    caller: Caller,
    watch: crate::OneshotWatch,
}

impl OneshotWatch {
    /// Waits for the event; returns the same one when called again.
    ///
    /// # Errors
    /// As [`crate::OneshotWatch::changed`].
    pub fn changed(&mut self) -> Result<WatchedEvent, Error> {
        self.caller.wait(self.watch.changed())
    }

    /// [`OneshotWatch::changed`] for at most `patience`; `None`: nothing happened.
    ///
    /// # Errors
    /// As [`crate::OneshotWatch::changed`].
    pub fn changed_timeout(&mut self, patience: Duration) -> Result<Option<WatchedEvent>, Error> {
        let changed = self.watch.changed();
        self.caller.wait(async { time::timeout(patience, changed).await.ok().transpose() })
    }
}

fn watched<T>(caller: &Caller, read: Watched<T>) -> Watched<T, OneshotWatch> {
    Watched { value: read.value, watch: OneshotWatch { caller: caller.clone(), watch: read.watch } }
}

impl Client {
    calls! { "Client" {
        ask fn create(path: &str, data: Option<Bytes>, mode: CreateMode, acl: Vec<Acl>) -> Created;
        ask fn create_with_ttl(
            path: &str, data: Option<Bytes>, mode: CreateMode, acl: Vec<Acl>, ttl: Duration
        ) -> Created;
        ask fn delete(path: &str, version: Option<Version>) -> ();
        ask fn exists(path: &str) -> Option<Stat>;
        ask fn exists_watched(path: &str) -> Watched<Option<Stat>, OneshotWatch>, watched;
        ask fn get(path: &str) -> Znode;
        ask fn get_watched(path: &str) -> Watched<Znode, OneshotWatch>, watched;
        ask fn get_children(path: &str) -> Children;
        ask fn get_children_watched(path: &str) -> Watched<Children, OneshotWatch>, watched;
        ask fn set(path: &str, data: Option<Bytes>, version: Option<Version>) -> Stat;
        ask fn get_acl(path: &str) -> AccessList;
        ask fn set_acl(path: &str, acl: Vec<Acl>, version: Option<Version>) -> Stat;
        ask fn sync(path: &str) -> ();
        ask fn get_ephemerals(prefix: &str) -> Vec<String>;
        ask fn commit(transaction: Transaction) -> Vec<Outcome>;
        ask fn add_auth(scheme: impl Into<String>, secret: impl Into<Bytes>) -> ();
    } }
}
