//! A model of Redis as far as locks need it: one server, asynchronous replicas, a monitor that fails over,
//! the append-only file. It follows Redis's documentation; what is left out does not concern locks.

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

/// The port of every server and monitor.
pub const PORT: u16 = 6379;

/// A request to a server or monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    Run(Command),
    Subscribe(String),
    /// `WAIT replicas timeout`: how many replicas have this connection's writes.
    Wait {
        /// How many are wanted.
        replicas: usize,
        /// How long to wait at most.
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
    /// To a monitor: the address of the primary.
    Primary,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Answer(Answer),
    /// Everything, and the offset in the stream of changes.
    Copy(Keyspace, u64),
    Info {
        /// How far it is in the stream of changes.
        offset: u64,
        is_primary: bool,
    },
    Address(String),
}

/// An unsolicited message of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// To a subscriber: something was published on the channel.
    Message(String),
    /// To a replica: changes up to this offset.
    Changes(u64, Vec<Effect>),
    /// To a replica: tell at once how far you are.
    GetAck,
}

/// Redis's protocol, as the models speak it.
pub struct Redis;

impl Protocol for Redis {
    type Request = Ask;
    type Reply = Reply;
    type Push = Push;
}
