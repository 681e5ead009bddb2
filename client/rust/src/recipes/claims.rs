//! Holds without a guard: those of a session that another process left ([`Client::detach`]).

use rowlock_proto::lock::Claim;
use rowlock_proto::{Request, Response};

use super::served;
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Asks the cluster whether this claim ([`crate::Guard::claim`]) of any client holds its lock at this
    /// moment (linearizable, a round trip).
    ///
    /// # Errors
    /// The end of the session, and refusals of reads.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn holds(&self, claim: &Claim) -> Result<bool, Error> {
        if !self.extensions().await?.has_locks() {
            self.sync(&claim.path).await?;
            let stat = self.exists(&claim.path).await?;
            return Ok(stat.is_some_and(|stat| stat.czxid.0 == claim.token.0));
        }
        match self.ask(Request::Verify([self.absolute_claim(claim)].into())).await?.response {
            Response::Held(held) => Ok(held[..] == [true]),
            _ => Err(Error::Protocol("a verify was answered with something else")),
        }
    }

    /// Releases a hold of this session by its claim. Returns `false` if the session did not hold the lock by
    /// this claim: the lock was lost before, or released.
    ///
    /// # Errors
    /// The end of the session ([`Error::may_have_happened`]).
    /// # Cancel safety
    /// A dropped future's release may take effect.
    pub async fn release_claim(&self, claim: &Claim) -> Result<bool, Error> {
        if !self.extensions().await?.has_locks() {
            return self.force_release(claim).await;
        }
        let released = self.in_time(served::release(self, vec![self.absolute_claim(claim)])).await?;
        Ok(released == [true])
    }

    fn absolute_claim(&self, claim: &Claim) -> Claim {
        Claim { path: self.absolute(&claim.path).into(), token: claim.token }
    }
}
