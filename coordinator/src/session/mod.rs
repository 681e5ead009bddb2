//! Session liveness: who was heard of when (on the leader), reports of touches (from followers), expiry.

pub mod charge;
pub mod contact;
pub mod liveness;
pub mod tracker;

use rowlock_proto::SessionId;
use tokio::sync::mpsc;

use crate::client::outbox::Outbox;

/// A sign of life of a session, from a connection of this node.
pub struct Touch {
    /// Whose.
    pub session: SessionId,
    /// For a ping: answered with `Message::Touched` once the leader, in contact with a quorum, has taken note.
    pub confirm: Option<Outbox>,
}

/// The door to session liveness: clone it freely.
#[derive(Clone)]
pub struct SessionTouch {
    queue: mpsc::Sender<Touch>,
}

impl SessionTouch {
    /// A door whose touches arrive at `queue`'s other end.
    pub fn new(queue: mpsc::Sender<Touch>) -> Self {
        SessionTouch { queue }
    }

    /// Notes that a frame of this session came in. Never waits; a full queue drops the touch (the next frame touches again).
    pub fn touch(&self, session: SessionId) {
        let _ = self.queue.try_send(Touch { session, confirm: None });
    }

    /// As `touch`, and sends `Message::Touched` when a ping may be answered: not before the leader's timer of this
    /// session has been restarted, so that a client's local deadline is never later than the server's. False: the queue
    /// is full, and nothing will be sent; ask again later.
    #[must_use = "a ping whose confirmation was not asked for is never answered"]
    pub fn confirm(&self, session: SessionId, reply_to: Outbox) -> bool {
        self.queue.try_send(Touch { session, confirm: Some(reply_to) }).is_ok()
    }
}
