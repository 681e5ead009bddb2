//! Sessions that an operator ends, whosever they are.

use rowlock_env::time;
use rowlock_proto::SessionId;
use rowlock_types::limits::API_ANSWER_MAX;

use super::call::Call;
use super::{Api, Caller, Refusal};
use crate::end_session::{EndSession, NotExpired};

impl Api {
    /// Ends the session, or the lease, as if its client had fallen silent. Whether there was one; repeating
    /// it is no error. The caller checks the permission.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: repeat it.
    /// # Cancel safety
    /// Once polled, the session may end even when the future is dropped.
    pub async fn end_session(&self, caller: &Caller, session: SessionId) -> Result<bool, Refusal> {
        self.check_serving()?;
        // A session that was opened before the request is known here then.
        Call::new(self, caller).sync().await?;
        let (replica, proposer) = (self.context.replica.clone(), self.context.proposer.clone());
        let deadline = time::now() + API_ANSWER_MAX;
        match (EndSession { replica, proposer }).run(session, caller.identities.clone(), deadline).await {
            Ok(()) => Ok(true),
            Err(NotExpired::NoSession) => Ok(false),
            Err(NotExpired::Unknown) => Err(Refusal::Unknown),
        }
    }
}
