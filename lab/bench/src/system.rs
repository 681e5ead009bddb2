//! Systems under measurement: Rowlock and its alternatives.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Cluster of servers together with the client that uses the cluster as a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Three nodes, our own client: one request per acquire, one per release.
    Rowlock,
    /// The same three nodes and the same client, by TLS with a client certificate.
    RowlockTls,
    /// The same three nodes, a plain ZooKeeper client with the sequential recipe.
    RowlockPlain,
    /// Three nodes of Apache ZooKeeper, the same plain client and recipe.
    Zookeeper,
    /// Three nodes of etcd, the Lock service over gRPC.
    Etcd,
    /// One Redis without durability before an answer; SET NX PX and compare-and-delete.
    Redis,
    /// One Redis with `appendfsync always`.
    RedisFsync,
    /// RedLock over five masters without durability before an answer.
    Redlock,
}

impl System {
    /// Systems in the order of the tables.
    pub const ALL: [System; 8] = [
        System::Rowlock,
        System::RowlockTls,
        System::RowlockPlain,
        System::Zookeeper,
        System::Etcd,
        System::Redis,
        System::RedisFsync,
        System::Redlock,
    ];

    /// Returns the name on the command line and in the files.
    pub fn name(self) -> &'static str {
        match self {
            System::Rowlock => "rowlock",
            System::RowlockTls => "rowlock-tls",
            System::RowlockPlain => "rowlock-plain",
            System::Zookeeper => "zookeeper",
            System::Etcd => "etcd",
            System::Redis => "redis",
            System::RedisFsync => "redis-fsync",
            System::Redlock => "redlock",
        }
    }

    /// Reports whether the system runs only on request: the report compares it with [`System::Rowlock`]
    /// alone.
    pub fn is_extra(self) -> bool {
        self == System::RowlockTls
    }

    /// Reports whether the system serves waiters in the order of their requests.
    pub fn is_fair(self) -> bool {
        !matches!(self, System::Redis | System::RedisFsync | System::Redlock)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        System::ALL.into_iter().find(|system| system.name() == name).ok_or_else(|| {
            let names: Vec<&str> = System::ALL.iter().map(|system| system.name()).collect();
            format!("there is no system {name:?}; there are: {}", names.join(", "))
        })
    }
}
