//! Watch events on the wire.

use crate::ids::Zxid;

/// The kind of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    /// Created by clients when the state of their session changes.
    None,
    /// Number 1: the znode was created.
    NodeCreated,
    /// Number 2: the znode was deleted.
    NodeDeleted,
    /// Number 3: the znode's data was set.
    NodeDataChanged,
    /// Number 4: a child was created or deleted.
    NodeChildrenChanged,
}

impl EventType {
    /// Reads the number on the wire. Java clients create 5 to 7 locally; these numbers are never sent.
    pub fn from_i32(number: i32) -> Option<Self> {
        match number {
            -1 => Some(Self::None),
            1 => Some(Self::NodeCreated),
            2 => Some(Self::NodeDeleted),
            3 => Some(Self::NodeDataChanged),
            4 => Some(Self::NodeChildrenChanged),
            _ => None,
        }
    }

    /// Returns the number on the wire.
    pub fn as_i32(self) -> i32 {
        let number = match self {
            Self::None => -1,
            Self::NodeCreated => 1,
            Self::NodeDeleted => 2,
            Self::NodeDataChanged => 3,
            Self::NodeChildrenChanged => 4,
        };
        debug_assert_eq!(Self::from_i32(number), Some(self), "the number decodes to another event");
        number
    }
}

/// A watch event: a frame with xid -1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedEvent {
    /// Zxid of the change (3.9 dialect); -1 from servers before 3.9.
    pub zxid: Zxid,
    /// The kind of change.
    pub event_type: EventType,
    /// State of the client; always 3 (SyncConnected) from servers.
    pub state: i32,
    /// Full path on the server.
    pub path: String,
}

impl WatchedEvent {
    /// The `state` of all events from servers.
    pub const SYNC_CONNECTED: i32 = 3;
}
