//! Session liveness: last contact of each session (on the leader), reports of touches (from followers),
//! expiry.
//!
//! # In the flow
//!
//! Connections pass their clients' keepalives to a [`SessionTouch`]. The task [`liveness::Liveness`] of each
//! node reports the keepalives to the leader. There [`expiry_table::HeartbeatAcks`] restarts the timers in
//! the [`expiry_table::ExpiryTable`], and answers after a quorum acknowledged the leader. The leader's task
//! proposes the expiry of sessions whose timers ran out.
//!
//! # Guarantees
//!
//! - No session expires before a silence of its whole timeout, by the clock of one leader.
//! - The leader restarts the timer before a heartbeat is answered, so a client never counts on more time than
//!   the leader grants.
//! - A leader without contact to a quorum expires no session and confirms no touch.
//!
//! # Limits
//!
//! Connections are unknown here: a [`HeartbeatWaiter`] receives the answer to a heartbeat.

pub mod expiry_table;
pub mod liveness;
pub mod tracker;

use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_proto::SessionId;
use tokio::sync::mpsc;

/// Receiver of the answer to a client's heartbeat.
pub trait HeartbeatWaiter: Send {
    /// Delivers the answer. With `is_recorded` the leader restarted the timer of the session, and a quorum
    /// acknowledged the leader afterwards; without, the leader runs no timer for the session. Must not block.
    fn answer(&self, is_recorded: bool);
}

/// Observation of a client by its connection.
pub enum Keepalive {
    Touch {
        session: SessionId,
        /// Receiver for the answer to a ping: called after the leader restarted the timer and a quorum
        /// acknowledged the leader.
        confirm: Option<Box<dyn HeartbeatWaiter>>,
    },
    /// The client closed its connection and had requested a shorter expiry for this case.
    ClientDisconnect(ClientDisconnect),
}

/// Sender of keepalives to the liveness task. Cheap to clone.
#[derive(Clone)]
pub struct SessionTouch {
    queue: mpsc::Sender<Keepalive>,
}

impl SessionTouch {
    /// Creates a sender to the task that reads the other end of `queue`.
    pub fn new(queue: mpsc::Sender<Keepalive>) -> Self {
        SessionTouch { queue }
    }

    /// Reports a received frame of this session. Never waits; a full queue drops the touch (the next frame
    /// touches again).
    pub fn touch(&self, session: SessionId) {
        let _ = self.queue.try_send(Keepalive::Touch { session, confirm: None });
    }

    /// Reports a ping like [`SessionTouch::touch`], and calls `waiter` when the ping may be answered: not
    /// before the leader restarted this session's timer, so that a client's local deadline is never later
    /// than the leader's. Returns false if the queue is full; `waiter` is then dropped and the caller retries
    /// later.
    #[must_use = "a ping whose confirmation was not asked for is never answered"]
    pub fn confirm(&self, session: SessionId, waiter: impl HeartbeatWaiter + 'static) -> bool {
        self.queue.try_send(Keepalive::Touch { session, confirm: Some(Box::new(waiter)) }).is_ok()
    }

    /// Reports a closed connection, behind every touch of the connection: the session ends after its grace
    /// unless the client reconnects. Never waits; with a full queue the session keeps its whole timeout.
    pub fn client_disconnected(&self, disconnect: ClientDisconnect) {
        let _ = self.queue.try_send(Keepalive::ClientDisconnect(disconnect));
    }
}
