//! Model of Redis as far as locks need: one server, asynchronous replicas, a monitor that fails over, the
//! append-only file. The model follows Redis's documentation and leaves out features that do not concern
//! locks.

pub mod client;
pub mod core;
pub mod log;
pub mod monitor;
pub mod replication;
pub mod server;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use self::core::{Answer, Command, Effect, Keyspace};
use crate::wire::Protocol;

/// Port of every server and monitor.
pub const PORT: u16 = 6379;

/// Request to a server or monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    Run(Command),
    Subscribe(String),
    /// `WAIT replicas timeout`: returns the number of replicas with this connection's writes.
    Wait {
        /// Wanted number of replicas.
        replicas: usize,
        timeout_ms: u64,
    },
    /// `PING`, with the answer of `INFO replication`.
    Info,
    /// `PSYNC` of a replica: always a full copy here.
    Sync,
    /// `REPLCONF ACK offset` of a replica.
    Acked(u64),
    /// `REPLICAOF host port`, or `NO ONE`.
    Follow(Option<String>),
    /// Request to a monitor for the primary's address.
    Primary,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Answer(Answer),
    /// Full copy, with its offset in the stream of changes.
    Copy(Keyspace, u64),
    Info {
        /// Offset in the stream of changes.
        offset: u64,
        is_primary: bool,
    },
    Address(String),
}

/// Unsolicited message of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Message to a subscriber of the channel.
    Message(String),
    /// Changes for a replica, up to this offset.
    Changes(u64, Vec<Effect>),
    /// Request to a replica for an immediate report.
    GetAck,
}

/// Protocol of the models of Redis.
pub struct Redis;

impl Protocol for Redis {
    type Request = Ask;
    type Reply = Reply;
    type Push = Push;
}
