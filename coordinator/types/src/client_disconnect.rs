//! The disconnect of a client, reported by the client's node to the leader. Pure.

use std::time::Duration;

use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;
use serde::{Deserialize, Serialize};

/// A client has closed its session's connection; the session may come back within a grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientDisconnect {
    pub session: SessionId,
    /// Attachment of the closed connection: a newer attachment makes the disconnect void.
    pub attachment: Attachment,
    /// Time for which the session lives on, in milliseconds.
    pub grace_ms: u32,
}

impl ClientDisconnect {
    pub fn grace(&self) -> Duration {
        Duration::from_millis(u64::from(self.grace_ms))
    }
}
