//! Session liveness: who was heard of when (on the leader), reports of touches (from followers), expiry.
//!
//! # In the flow
//!
//! Connections give their clients' signs of life to a [`SessionTouch`]. The task [`liveness::Liveness`] of
//! each node reports them to the leader. There [`heartbeat_ack::HeartbeatAcks`] restarts the timers in the
//! [`expiry_table::ExpiryTable`], and answers once a quorum has been heard of since. The task of the leader
//! proposes the end of sessions whose timers have run out.
//!
//! # What it promises
//!
//! - No session is expired before it was silent for its whole timeout, by the clock of one leader.
//! - A heartbeat is answered after the leader's timer has been restarted, so a client never counts on more
//!   time than the leader gives it.
//! - A leader without contact to a quorum expires no session and confirms nothing.
//!
//! # What it does not know
//!
//! What a connection is: who waits for the answer to a heartbeat is a [`HeartbeatWaiter`].

pub mod expiry_table;
pub mod heartbeat_ack;
pub mod last_contact;
pub mod liveness;
pub mod tracker;

use rowlock_proto::SessionId;
use rowlock_types::client_disconnect::ClientDisconnect;
use tokio::sync::mpsc;

/// Receiver of the answer to a client's heartbeat.
pub trait HeartbeatWaiter: Send {
    /// `is_noted`: the leader has restarted the timer of the session, and a quorum has acknowledged the
    /// leader since. Otherwise its timer of this session does not run any more. Must not block.
    fn answer(&self, is_noted: bool);
}

/// An observation of a client by its connection.
pub enum Sign {
    Touch {
        session: SessionId,
        /// For a ping: is answered once the leader has taken note, and a quorum has acknowledged it since.
        confirm: Option<Box<dyn HeartbeatWaiter>>,
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

    /// As `touch`, and tells `waiter` when a ping may be answered: not before the leader's timer of
    /// this session has been restarted, so that a client's local deadline is never later than the server's.
    /// False: the queue is full, and nothing will be said; ask again later.
    #[must_use = "a ping whose confirmation was not asked for is never answered"]
    pub fn confirm(&self, session: SessionId, waiter: impl HeartbeatWaiter + 'static) -> bool {
        self.queue.try_send(Sign::Touch { session, confirm: Some(Box::new(waiter)) }).is_ok()
    }

    /// The connection is closed, behind every touch of it: the session ends after its grace unless its client
    /// comes back. Never waits; with a full queue the session has its whole timeout.
    pub fn client_disconnected(&self, disconnect: ClientDisconnect) {
        let _ = self.queue.try_send(Sign::ClientDisconnect(disconnect));
    }
}
