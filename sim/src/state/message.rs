//! The messages between a client and its node: values here, ZooKeeper's frames on the wire.

use rowlock_proto::lock::Notice;
use rowlock_proto::{ErrorCode, Stat, Zxid};
use rowlock_state::command::Command;
use rowlock_state::outcome::{ChangeKind, Outcome};

use crate::history::Millis;

/// A client's own number of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// From client to node.
#[derive(Clone, Debug)]
pub enum Up {
    /// A write, or the handshake (`OpenSession`, `Reattach`).
    Write { tag: Tag, command: Command },
    /// getChildren, with the czxid of each child.
    List { tag: Tag, path: String },
    /// getData with a watch: a watch is left only if the znode exists.
    Watch { tag: Tag, path: String },
    /// Heartbeat.
    Ping { sent: Millis },
}

/// From node to client.
#[derive(Clone, Debug)]
pub enum Down {
    /// The answer to a write.
    Answer { tag: Tag, zxid: Zxid, result: Result<Outcome, ErrorCode> },
    /// The answer to [`Up::List`]: names with the zxid of their creation.
    Listed { tag: Tag, zxid: Zxid, children: Vec<(String, Zxid)> },
    /// The answer to [`Up::Watch`].
    Seen { tag: Tag, zxid: Zxid, stat: Option<Stat> },
    /// The leader has heard the ping that was sent at that time.
    Pong { sent: Millis },
    /// A watch event.
    Event { zxid: Zxid, path: String, kind: ChangeKind },
    /// A place of the session was granted its lock, or lost.
    Notice { zxid: Zxid, notice: Notice },
    /// The connection is closed.
    Closed,
}
