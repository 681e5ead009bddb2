//! One client of each system, all behind the same two calls, so that a workload is written once.

mod etcd;
mod redis;
mod redlock;
mod rowlock;
mod zookeeper;

use anyhow::Result;

use crate::system::System;

/// A client with a session or connection of its own. It holds one lock at a time.
pub enum Driver {
    /// Our own client.
    Rowlock(rowlock::Client),
    /// A plain ZooKeeper client, on ZooKeeper or on Rowlock.
    Zookeeper(zookeeper::Client),
    /// etcd's Lock service.
    Etcd(etcd::Client),
    /// One Redis.
    Redis(redis::Client),
    /// Five of them.
    Redlock(redlock::Client),
}

/// How long a session, lease or key outlives its client.
pub const TTL: std::time::Duration = std::time::Duration::from_secs(10);

impl Driver {
    /// Connects client number `n` (clients are spread over the servers by it).
    ///
    /// # Errors
    /// The servers cannot be reached, or refuse.
    pub async fn connect(system: System, addresses: &[String], n: usize) -> Result<Driver> {
        Ok(match system {
            System::Rowlock => Driver::Rowlock(rowlock::Client::connect(addresses, n).await?),
            System::RowlockPlain | System::Zookeeper => {
                Driver::Zookeeper(zookeeper::Client::connect(addresses, n).await?)
            }
            System::Etcd => Driver::Etcd(etcd::Client::connect(addresses, n).await?),
            System::Redis | System::RedisFsync => Driver::Redis(redis::Client::connect(addresses, n).await?),
            System::Redlock => Driver::Redlock(redlock::Client::connect(addresses, n).await?),
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
        }
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
            Driver::Redis(client) => client.close().await,
            Driver::Redlock(client) => client.close().await,
        }
    }
}
