//! Session liveness: who was heard of when (on the leader), reports of touches (from followers), expiry.

pub mod expiry_table;
pub mod heartbeat_ack;
pub mod last_contact;
pub mod liveness;
pub mod tracker;

use rowlock_proto::SessionId;
use rowlock_types::client_disconnect::ClientDisconnect;
use tokio::sync::mpsc;

use crate::delivery::outbox::Outbox;

/// What a connection of this node has seen of its client.
pub enum Sign {
    /// It lives.
    Touch {
        /// Whose session.
        session: SessionId,
        /// For a ping: answered with `Message::Touched` once the leader has taken note, and a quorum has
        /// acknowledged it since.
        confirm: Option<Outbox>,
    },
    /// It has hung up, and had asked that this counts.
    ClientDisconnect(ClientDisconnect),
}

/// The door to session liveness: clone it freely.
#[derive(Clone)]
pub struct SessionTouch {
    queue: mpsc::Sender<Sign>,
}

impl SessionTouch {
    /// A door whose signs arrive at `queue`'s other end.
    pub fn new(queue: mpsc::Sender<Sign>) -> Self {
        SessionTouch { queue }
    }

    /// Notes that a frame of this session came in. Never waits; a full queue drops the touch (the next frame
    /// touches again).
    pub fn touch(&self, session: SessionId) {
        let _ = self.queue.try_send(Sign::Touch { session, confirm: None });
    }

    /// As `touch`, and sends `Message::Touched` when a ping may be answered: not before the leader's timer of
    /// this session has been restarted, so that a client's local deadline is never later than the server's.
    /// False: the queue is full, and nothing will be sent; ask again later.
    #[must_use = "a ping whose confirmation was not asked for is never answered"]
    pub fn confirm(&self, session: SessionId, reply_to: Outbox) -> bool {
        self.queue.try_send(Sign::Touch { session, confirm: Some(reply_to) }).is_ok()
    }

    /// The connection is closed, behind every touch of it: the session ends after its grace unless its client
    /// comes back. Never waits; with a full queue the session has its whole timeout.
    pub fn client_disconnected(&self, disconnect: ClientDisconnect) {
        let _ = self.queue.try_send(Sign::ClientDisconnect(disconnect));
    }
}
