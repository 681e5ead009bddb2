//! A client has closed its connection: what its node tells the leader. Pure.

use std::time::Duration;

use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;
use serde::{Deserialize, Serialize};

/// The connection of a session was closed by its client, which may come back within a grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientDisconnect {
    pub session: SessionId,
    /// Attachment of the closed connection: a newer one is not concerned.
    pub attachment: Attachment,
    /// How long the session may live on, milliseconds.
    pub grace_ms: u32,
}

impl ClientDisconnect {
    pub fn grace(&self) -> Duration {
        Duration::from_millis(u64::from(self.grace_ms))
    }
}
