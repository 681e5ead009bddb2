//! One client per system, all behind the same trait, so that each workload is written once.

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

/// A client with a session or connection of its own. It holds one lock at a time.
pub enum Driver {
    Rowlock(rowlock::Client),
    /// A plain ZooKeeper client, on ZooKeeper or on Rowlock.
    Zookeeper(zookeeper::Client),
    Etcd(Box<etcd::Client>),
    Redis(redis::Client),
    Redlock(redlock::Client),
    /// A task's handle of a client that several share, of any system but Rowlock with its own client.
    Shared(shared::Handle),
}

/// How long a session, lease or key outlives its client, unless a workload says otherwise.
pub const TTL: Duration = Duration::from_secs(10);

/// What a workload may choose of a client.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Session timeout, time to live of a lease or of a key.
    pub ttl: Duration,
    /// How long a session outlives its connection, where that can be chosen (only Rowlock's own client);
    /// zero: as long as `ttl`.
    pub disconnect_grace: Duration,
    /// How long a plain ZooKeeper client tries again if a server closes the connection instead of opening a
    /// session, as it does while it looks for a leader. Zero: one try. (Rowlock's own client has its own
    /// limit.)
    pub retry_for: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { ttl: TTL, disconnect_grace: Duration::ZERO, retry_for: TTL }
    }
}

/// The server of client `n`: clients are spread over them.
fn spread(addresses: &[String], n: usize) -> &str {
    &addresses[n % addresses.len()]
}

impl Driver {
    /// Connects client number `n` (clients are spread over the servers by it).
    ///
    /// # Errors
    /// The servers cannot be reached, or refuse.
    pub async fn connect(system: System, addresses: &[String], n: usize) -> Result<Driver> {
        Driver::connect_with(system, addresses, n, Settings::default()).await
    }

    /// [`Driver::connect`] with settings other than the usual ones.
    ///
    /// # Errors
    /// As of [`Driver::connect`].
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

    /// Waits for the lock, as long as it takes.
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

    /// Connects one client, and gives each of `tasks` tasks a handle of it. It is closed when all handles are
    /// dropped.
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

    /// Gives back what was acquired last; returns when the system has answered.
    ///
    /// # Errors
    /// As of [`Driver::acquire`], or the lock was not held any more.
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

    /// Releases what was acquired last without waiting: the request is sent with the next one at the latest.
    /// Its answer is checked before the next one's, except with our own client, which does not report it.
    ///
    /// # Errors
    /// Nothing is held, or the system needs the answer first (etcd: the next Lock of a lease may overtake its
    /// Unlock, find its own key and hold what is about to be deleted).
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

    /// Keeps the session alive and does nothing else, for ever: what a client does while it holds a lock or
    /// nothing.
    ///
    /// # Errors
    /// The connection broke.
    ///
    /// # Cancel safety
    /// The client can be used when the future is dropped.
    pub async fn stay(&mut self) -> Result<()> {
        match self {
            // Its own task sends heartbeats; Redis knows no sessions.
            Driver::Rowlock(_) | Driver::Redis(_) | Driver::Redlock(_) | Driver::Shared(_) => {
                std::future::pending().await
            }
            Driver::Zookeeper(client) => client.session.stay().await,
            Driver::Etcd(client) => client.channel.stay().await,
        }
    }

    /// Ends the session in good order.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn close(self) -> Result<()> {
        match self {
            Driver::Rowlock(client) => client.close().await,
            Driver::Zookeeper(client) => client.close().await,
            Driver::Etcd(client) => client.close().await,
            // Closing the connection is all there is.
            Driver::Redis(_) | Driver::Redlock(_) | Driver::Shared(_) => Ok(()),
        }
    }
}
