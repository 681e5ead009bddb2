//! Sessions ended by an operator.

use rowlock_env::time;
use rowlock_proto::SessionId;

use super::call::Call;
use super::{Api, Caller, Refusal};
use crate::limits::API_ANSWER_MAX;
use crate::node::end_session::{EndSession, NotExpired};

impl Api {
    /// Expires a session or lease of any client. Returns false if there was no such session; repeating the
    /// request is no error. The caller checks the permission.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: repeat the request.
    /// # Cancel safety
    /// Not cancel safe: once polled, the session may end even when the future is dropped.
    pub async fn end_session(&self, caller: &Caller, session: SessionId) -> Result<bool, Refusal> {
        self.check_serving()?;
        // After this call the local state has each session opened before the request.
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
