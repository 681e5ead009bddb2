//! [`Client`]: the session, for callers that block.

use std::future::Future;
use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_proto::{SessionId, Stat, lock};

use super::caller::Caller;
use super::election::Election;
use super::locks::{Mutex, ReentrantMutex};
use super::multi::MultiLock;
use super::recipes::{Barrier, Counter, DoubleBarrier, Latch};
use super::rwlock::RwLock;
use super::semaphore::Semaphore;
use crate::admin::Reconfig;
use crate::builder::ClientBuilder;
use crate::connect_error::ConnectError;
use crate::error::Error;
use crate::session::SessionState;
use crate::session::extensions::Extensions;

/// One session with a cluster, as [`crate::Client`]; clones share it. It ends with [`Client::close`], when
/// the last handle is dropped, when a server says that it has expired, or at its local deadline.
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

    /// A handle of the same session whose calls, and those of handles made by it, take no longer than this
    /// where they wait for the servers alone: znode calls, counters, releases. Then they fail with
    /// [`Error::NoAnswer`], and may have taken effect. Calls that wait for other clients have timeouts of
    /// their own.
    #[must_use]
    pub fn operation_timeout(&self, patience: Duration) -> Client {
        Client { caller: self.caller.with_patience(patience) }
    }

    /// The session's number.
    pub fn session_id(&self) -> SessionId {
        self.caller.client().session_id()
    }

    /// The session timeout that the server agreed to.
    pub fn session_timeout(&self) -> Duration {
        self.caller.client().session_timeout()
    }

    /// What the session is in now.
    pub fn state(&self) -> SessionState {
        self.caller.client().state()
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

    /// Until when the session is certainly alive: see [`crate::Client::valid_until`].
    pub fn valid_until(&self) -> Option<Instant> {
        self.caller.client().valid_until()
    }

    /// Ends the session: its ephemeral znodes and locks are gone when this returns `Ok`.
    ///
    /// # Errors
    /// As [`crate::Client::close`]; [`Error::NoAnswer`].
    pub fn close(&self) -> Result<(), Error> {
        self.caller.ask(self.caller.client().close())
    }

    /// See [`crate::Client::extensions`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn extensions(&self) -> Result<Extensions, Error> {
        self.caller.ask(self.caller.client().extensions())
    }

    /// See [`crate::Client::force_release`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been released.
    pub fn force_release(&self, claim: &lock::Claim) -> Result<bool, Error> {
        self.caller.ask(self.caller.client().force_release(claim))
    }

    /// See [`crate::Client::report`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn report(&self, path: &str) -> Result<String, Error> {
        self.caller.ask(self.caller.client().report(path))
    }

    /// See [`crate::Client::reconfig`]. An operation timeout should be half a minute or more.
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: look at `/zookeeper/config`.
    pub fn reconfig(&self, change: &Reconfig) -> Result<(String, Stat), Error> {
        self.caller.ask(self.caller.client().reconfig(change))
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

    /// See [`crate::Client::mutex`].
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(&self.caller, self.caller.client().mutex(name))
    }

    /// See [`crate::Client::mutex_at`].
    pub fn mutex_at(&self, path: &str) -> Mutex {
        Mutex::new(&self.caller, self.caller.client().mutex_at(path))
    }

    /// See [`crate::Client::reentrant_mutex`].
    pub fn reentrant_mutex(&self, name: &str) -> ReentrantMutex {
        ReentrantMutex::new(&self.caller, self.caller.client().reentrant_mutex(name))
    }

    /// See [`crate::Client::rwlock`].
    pub fn rwlock(&self, name: &str) -> RwLock {
        RwLock::new(&self.caller, self.caller.client().rwlock(name))
    }

    /// See [`crate::Client::rwlock_at`].
    pub fn rwlock_at(&self, path: &str) -> RwLock {
        RwLock::new(&self.caller, self.caller.client().rwlock_at(path))
    }

    /// See [`crate::Client::semaphore`].
    pub fn semaphore(&self, name: &str, limit: u32) -> Semaphore {
        Semaphore::new(&self.caller, self.caller.client().semaphore(name, limit))
    }

    /// See [`crate::Client::semaphore_at`].
    pub fn semaphore_at(&self, path: &str, limit: u32) -> Semaphore {
        Semaphore::new(&self.caller, self.caller.client().semaphore_at(path, limit))
    }

    /// See [`crate::Client::multi`].
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(&self.caller, self.caller.client().multi(names))
    }

    /// See [`crate::Client::new_owner`].
    pub fn new_owner(&self) -> lock::Owner {
        self.caller.client().new_owner()
    }

    /// See [`crate::Client::election`].
    pub fn election(&self, name: &str) -> Election {
        Election::new(&self.caller, self.caller.client().election(name))
    }

    /// See [`crate::Client::election_at`].
    pub fn election_at(&self, path: &str) -> Election {
        Election::new(&self.caller, self.caller.client().election_at(path))
    }

    /// See [`crate::Client::counter`].
    pub fn counter(&self, name: &str) -> Counter {
        Counter::new(&self.caller, self.caller.client().counter(name))
    }

    /// See [`crate::Client::counter_at`].
    pub fn counter_at(&self, path: &str) -> Counter {
        Counter::new(&self.caller, self.caller.client().counter_at(path))
    }

    /// See [`crate::Client::latch`].
    pub fn latch(&self, name: &str, count: u32) -> Latch {
        Latch::new(&self.caller, self.caller.client().latch(name, count))
    }

    /// See [`crate::Client::barrier`].
    pub fn barrier(&self, name: &str) -> Barrier {
        Barrier::new(&self.caller, self.caller.client().barrier(name))
    }

    /// See [`crate::Client::barrier_at`].
    pub fn barrier_at(&self, path: &str) -> Barrier {
        Barrier::new(&self.caller, self.caller.client().barrier_at(path))
    }

    /// See [`crate::Client::double_barrier`].
    pub fn double_barrier(&self, name: &str, size: u32) -> DoubleBarrier {
        DoubleBarrier::new(&self.caller, self.caller.client().double_barrier(name, size))
    }
}
