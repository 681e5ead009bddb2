//! Watch events as they travel.

use crate::ids::Zxid;

/// What happened to the watched path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    /// Made by clients when their session's state changes.
    None,
    /// 1.
    NodeCreated,
    /// 2.
    NodeDeleted,
    /// 3.
    NodeDataChanged,
    /// 4.
    NodeChildrenChanged,
}

/// A frame with xid -1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedEvent {
    /// Zxid of the change (3.9 dialect); -1 from servers before 3.9.
    pub zxid: Zxid,
    /// What happened.
    pub event_type: EventType,
    /// Always 3 (SyncConnected) from servers.
    pub state: i32,
    /// Full path on the server.
    pub path: String,
}
