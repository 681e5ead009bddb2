//! Ends a session that an operator or the node's program names: through the log, as the leader ends one that
//! has fallen silent.

use std::sync::Arc;

use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_state::command::{Attachment, Command};

use crate::delivery::outbox;
use crate::proposer::{Proposer, Submission};
use crate::replica::Replica;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExpired {
    /// There is no such session (any more).
    #[error("there is no such session")]
    NoSession,
    /// Whether it has ended is not known: the leader was lost, or did not answer in time.
    #[error("whether the session has ended is not known")]
    Unknown,
}

pub struct EndSession {
    pub replica: Arc<Replica>,
    /// The door for writes.
    pub proposer: Proposer,
}

impl EndSession {
    /// Does it, on behalf of `who`: a superuser, or no identity, as when it expires.
    ///
    /// # Errors
    /// [`NotExpired::NoSession`]: this node knows no such session. [`NotExpired::Unknown`]: it may have been
    /// ended, or may still be.
    /// # Cancel safety
    /// Once polled, the session may end even when the future is dropped.
    pub async fn run(&self, session: SessionId, who: Arc<[Id]>, deadline: Instant) -> Result<(), NotExpired> {
        // A client that moves to another connection gets a new attachment, which the command does not mean.
        while let Some(attachment) = self.attachment(session) {
            let (reply_to, inbox) = outbox::channel();
            let command = Command::ExpireSession { session, attachment };
            let submission = Submission { identities: who.clone(), ..Submission::of_node(command, reply_to) };
            self.proposer.submit(submission).await.map_err(|_| NotExpired::Unknown)?;
            let applied = time::timeout_at(deadline, inbox.is_applied()).await;
            if !applied.unwrap_or(false) {
                return Err(NotExpired::Unknown);
            }
            if self.attachment(session).is_none() {
                return Ok(());
            }
        }
        Err(NotExpired::NoSession)
    }

    fn attachment(&self, session: SessionId) -> Option<Attachment> {
        self.replica.state.read().session(session).map(|open| open.attachment)
    }
}
