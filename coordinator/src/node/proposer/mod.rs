//! From a connection's write to the log, and the way back of the answers.

mod fair_queue;
pub mod intake;
pub mod pending;
mod submissions;
mod window;
mod yield_to_ready;

use std::sync::Arc;

use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::delivery::outbox::Outbox;

/// A write of a client, on its way into the log.
pub struct Submission {
    /// The session that it is of.
    pub session: SessionId,
    /// The connection's attachment of that session.
    pub attachment: Attachment,
    /// Whom its client has proven to be.
    pub identities: Arc<[Id]>,
    pub command: Command,
    /// Where the answer goes: `Message::Applied { tag, .. }`, or `Message::Lost` when the outcome cannot be
    /// known.
    pub reply_to: Outbox,
    /// Given back with the answer.
    pub tag: u64,
    /// When its client asked for it.
    pub received: Instant,
}

impl Submission {
    /// A write of the node itself, received now: of no session, without identities, with tag 0.
    pub fn of_node(command: Command, reply_to: Outbox) -> Submission {
        Submission {
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Arc::default(),
            command,
            reply_to,
            tag: 0,
            received: time::now(),
        }
    }
}

/// The door to the proposer: clone it freely.
#[derive(Clone)]
pub struct Proposer {
    queue: mpsc::Sender<Submission>,
}

/// The node is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the node is shutting down")]
pub struct Closed;

/// A submission was not queued.
pub enum NotTaken {
    /// The queue is full: here it is again.
    Full(Box<Submission>),
    /// The node is shutting down.
    Closed,
}

impl Proposer {
    /// A proposer whose submissions arrive at `queue`'s other end.
    pub fn new(queue: mpsc::Sender<Submission>) -> Self {
        Proposer { queue }
    }

    /// Queues a write. Submissions of one caller keep their order. Waits while the queue is full
    /// (`limits::PROPOSER_QUEUE_MAX`); cancelling the wait means that nothing was queued.
    pub async fn submit(&self, submission: Submission) -> Result<(), Closed> {
        self.queue.send(submission).await.map_err(|_| Closed)
    }

    /// As [`Self::submit`], but does not wait.
    pub fn try_submit(&self, submission: Submission) -> Result<(), NotTaken> {
        self.queue.try_send(submission).map_err(|refused| match refused {
            TrySendError::Full(submission) => NotTaken::Full(Box::new(submission)),
            TrySendError::Closed(_) => NotTaken::Closed,
        })
    }
}

/// A command that no client has sent.
pub(crate) fn of_the_cluster(command: Command) -> Proposal {
    Proposal {
        origin: Origin::default(),
        session: SessionId::NONE,
        attachment: Attachment::default(),
        identities: Default::default(),
        command,
    }
}
