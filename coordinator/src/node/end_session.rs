//! Ends a session on behalf of an operator or of the node's program: through the log, as the leader ends a
//! silent session.

use std::sync::Arc;

use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_state::command::{Attachment, Command};

use crate::node::context::Replica;
use crate::node::delivery::outbox;
use crate::node::proposer::{Proposer, Submission};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExpired {
    /// No session has this id (any more).
    #[error("there is no such session")]
    NoSession,
    /// The leader was lost or did not answer in time: the session may have ended.
    #[error("whether the session has ended is not known")]
    Unknown,
}

pub struct EndSession {
    pub replica: Arc<Replica>,
    /// Accepts the command for the log.
    pub proposer: Proposer,
}

impl EndSession {
    /// Ends the session on behalf of `who`: a superuser, or no identity, as at an expiry.
    ///
    /// # Errors
    /// [`NotExpired::NoSession`]: this node knows no such session. [`NotExpired::Unknown`]: the session may
    /// have ended, or may still end.
    /// # Cancel safety
    /// Once polled, the session may end even when the future is dropped.
    pub async fn run(&self, session: SessionId, who: Arc<[Id]>, deadline: Instant) -> Result<(), NotExpired> {
        // A client that reconnects gets a new attachment, and the command names the old one.
        while let Some(attachment) = self.attachment(session) {
            let (reply_to, inbox) = outbox::channel();
            let command = Command::ExpireSession { session, attachment };
            let submission = Submission { identities: who.clone(), ..Submission::of_node(command, reply_to) };
            self.proposer.submit(submission).await.map_err(|_| NotExpired::Unknown)?;
            let applied = time::timeout_at(deadline, inbox.is_applied()).await;
            if decides!("session-end-is-not-applied", !applied.unwrap_or(false)) {
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
