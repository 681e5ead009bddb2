//! Path from a connection's write to the log, and of the replies back to the connection.

mod fair_queue;
pub mod intake;
pub mod pending;

use std::sync::Arc;

use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::node::delivery::outbox::Outbox;

/// A client's write, on its way into the log.
pub struct Submission {
    /// Session of the write.
    pub session: SessionId,
    /// The connection's attachment of that session.
    pub attachment: Attachment,
    /// Authenticated identities of the client.
    pub identities: Arc<[Id]>,
    pub command: Command,
    /// Receives `Message::Applied { tag, .. }`, or `Message::Lost` if the outcome is unknown.
    pub reply_to: Outbox,
    /// Returned with the reply.
    pub tag: u64,
    /// Arrival time of the client's request.
    pub received: Instant,
}

impl Submission {
    /// Creates a write of the node itself, received now: without session and identities, with tag 0.
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

/// Handle that submits writes. Cheap to clone.
#[derive(Clone)]
pub struct Proposer {
    queue: mpsc::Sender<Submission>,
}

/// The node is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the node is shutting down")]
pub struct Closed;

/// Reason why a submission was not queued.
pub enum NotTaken {
    /// The queue is full. Returns the submission.
    Full(Box<Submission>),
    /// The node is shutting down.
    Closed,
}

impl Proposer {
    /// Creates a handle that submits to `queue`.
    pub fn new(queue: mpsc::Sender<Submission>) -> Self {
        Proposer { queue }
    }

    /// Queues a write. Submissions of one caller keep their order. Waits while the queue is full
    /// (`limits::PROPOSER_QUEUE_MAX`); a canceled call has queued nothing.
    pub async fn submit(&self, submission: Submission) -> Result<(), Closed> {
        self.queue.send(submission).await.map_err(|_| Closed)
    }

    /// Queues a write like [`Self::submit`], but does not wait.
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
