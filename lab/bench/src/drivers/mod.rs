//! One client per system, all behind the same interface: each workload has one implementation.

pub mod data;
mod etcd;
mod pipe;
mod redis;
mod redlock;
pub mod resp;
pub mod rowlock;
mod shared;
mod zookeeper;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::system::System;
pub use data::Reads;

/// Client with its own session or connection. A client holds one lock at a time.
pub enum Driver {
    Rowlock(rowlock::Client),
    /// A plain ZooKeeper client, on ZooKeeper or on Rowlock.
    Zookeeper(zookeeper::Client),
    Etcd(Box<etcd::Client>),
    Redis(redis::Client),
    Redlock(redlock::Client),
    /// Task's handle of a client that several tasks share, for any system except Rowlock with its own client.
    Shared(shared::Handle),
}

/// Lifetime of a session, lease or key after its client's death, unless a workload sets another one.
pub const TTL: Duration = Duration::from_secs(10);

/// Settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Session timeout, or time to live of a lease or key.
    pub ttl: Duration,
    /// Lifetime of a session after the loss of its connection (only in Rowlock's own client); zero means
    /// `ttl`.
    pub disconnect_grace: Duration,
    /// Time for which a plain ZooKeeper client retries while servers close the connection instead of opening
    /// a session, as servers do during an election. Zero means one try. (Rowlock's own client has its own
    /// limit.)
    pub retry_for: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { ttl: TTL, disconnect_grace: Duration::ZERO, retry_for: TTL }
    }
}

/// Returns the server of client `n`: the clients are spread over the servers.
fn spread(addresses: &[String], n: usize) -> &str {
    &addresses[n % addresses.len()]
}

impl Driver {
    /// Connects client number `n`, which also selects the server.
    ///
    /// # Errors
    /// The servers cannot be reached, or refuse.
    pub async fn connect(system: System, addresses: &[String], n: usize) -> Result<Driver> {
        Driver::connect_with(system, addresses, n, Settings::default()).await
    }

    /// Connects like [`Driver::connect`], with other settings.
    ///
    /// # Errors
    /// The same as [`Driver::connect`].
    pub async fn connect_with(
        system: System,
        addresses: &[String],
        n: usize,
        settings: Settings,
    ) -> Result<Driver> {
        Ok(match system {
            System::Rowlock => Driver::Rowlock(rowlock::Client::connect(addresses, settings).await?),
            System::RowlockTls => {
                Driver::Rowlock(rowlock::Client::connect_by_tls(addresses, settings).await?)
            }
            System::RowlockPlain | System::Zookeeper => {
                Driver::Zookeeper(zookeeper::Client::connect(addresses, n, settings).await?)
            }
            System::Etcd => Driver::Etcd(Box::new(etcd::Client::connect(addresses, n, settings).await?)),
            System::Redis | System::RedisFsync => {
                Driver::Redis(redis::Client::connect(addresses, n, settings).await?)
            }
            System::Redlock => Driver::Redlock(redlock::Client::connect(addresses, n, settings).await?),
        })
    }

    /// Waits for the lock, without a time limit.
    ///
    /// # Errors
    /// The system refused, or the connection broke: the trial is void.
    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        match self {
            Driver::Rowlock(client) => client.acquire(lock).await,
            Driver::Zookeeper(client) => client.acquire(lock).await,
            Driver::Etcd(client) => client.acquire(lock).await,
            Driver::Redis(client) => client.acquire(lock).await,
            Driver::Redlock(client) => client.acquire(lock).await,
            Driver::Shared(task) => task.acquire(lock).await,
        }
    }

    /// Connects one client, and returns a handle for each of `tasks` tasks. The last dropped handle closes
    /// the client.
    ///
    /// # Errors
    /// The servers cannot be reached, or refuse.
    pub async fn share(system: System, addresses: &[String], tasks: usize) -> Result<Vec<Driver>> {
        let settings = Settings::default();
        let handles = match system {
            System::Rowlock | System::RowlockTls => {
                let Driver::Rowlock(first) = Driver::connect(system, addresses, 0).await? else {
                    bail!("Invariant: our own client is the driver of {system}")
                };
                return Ok((0..tasks).map(|_| Driver::Rowlock(first.handle())).collect());
            }
            System::RowlockPlain | System::Zookeeper => {
                shared::Zookeeper::share(addresses, tasks, settings).await?
            }
            System::Etcd => shared::Etcd::share(addresses, tasks, settings).await?,
            System::Redis | System::RedisFsync => shared::Redis::share(&addresses[..1], tasks).await?,
            System::Redlock => shared::Redis::share(addresses, tasks).await?,
        };
        Ok(handles.into_iter().map(Driver::Shared).collect())
    }

    /// Releases the last acquired lock; returns after the system's answer.
    ///
    /// # Errors
    /// The same as [`Driver::acquire`], or the client no longer held the lock.
    pub async fn release(&mut self) -> Result<()> {
        match self {
            Driver::Rowlock(client) => client.release().await,
            Driver::Zookeeper(client) => client.release().await,
            Driver::Etcd(client) => client.release().await,
            Driver::Redis(client) => client.release().await,
            Driver::Redlock(client) => client.release().await,
            Driver::Shared(task) => task.release().await,
        }
    }

    /// Releases the last acquired lock without waiting: the request leaves with the next request at the
    /// latest. The next request checks the answer first, except with our own client, which does not report
    /// the answer.
    ///
    /// # Errors
    /// The client holds nothing, or the system needs the answer first (etcd: the next Lock of a lease may
    /// overtake its
    /// Unlock, find its own key and hold a key that the Unlock is about to delete).
    pub fn post_release(&mut self) -> Result<()> {
        match self {
            Driver::Rowlock(client) => client.post_release(),
            Driver::Zookeeper(client) => client.post_release(),
            Driver::Etcd(_) => bail!("etcd's lock cannot be used again before its release was answered"),
            Driver::Redis(client) => client.post_release(),
            Driver::Redlock(client) => client.post_release(),
            Driver::Shared(_) => bail!("a shared client waits for its releases"),
        }
    }

    /// Keeps the session alive and does nothing else, for ever, like a client at work or without a lock.
    ///
    /// # Errors
    /// The connection broke.
    ///
    /// # Cancel safety
    /// The client stays usable after the future is dropped.
    pub async fn stay(&mut self) -> Result<()> {
        match self {
            // Our client's own task sends keepalives; Redis has no sessions.
            Driver::Rowlock(_) | Driver::Redis(_) | Driver::Redlock(_) | Driver::Shared(_) => {
                std::future::pending().await
            }
            Driver::Zookeeper(client) => client.session.stay().await,
            Driver::Etcd(client) => client.channel.stay().await,
        }
    }

    /// Closes the session of the client.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn close(self) -> Result<()> {
        match self {
            Driver::Rowlock(client) => client.close().await,
            Driver::Zookeeper(client) => client.close().await,
            Driver::Etcd(client) => client.close().await,
            // Redis: closing the connection is enough.
            Driver::Redis(_) | Driver::Redlock(_) | Driver::Shared(_) => Ok(()),
        }
    }
}
