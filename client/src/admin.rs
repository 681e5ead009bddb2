//! What people and tools do about locks of others: look, and force a release.

use rowlock_proto::lock::Claim;
use rowlock_proto::{Request, Response};

use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Ends somebody else's hold (or takes somebody out of the queue): exactly this place with exactly this token, which
    /// a queue or a report shows. `false`: it was not there any more, and nothing has been changed. The holder is told
    /// ([`crate::LostReason::ForceReleased`]), but may have a write on its way: this is for people who know that it is
    /// dead.
    ///
    /// On plain ZooKeeper the znode is deleted, after a look that it is the one with this token.
    ///
    /// # Errors
    /// [`Error::Rejected`] (NoAuth: needs DELETE on the lock's znode); the common ones of writes.
    /// # Cancel safety
    /// A dropped future's release may take effect.
    pub async fn force_release(&self, claim: &Claim) -> Result<bool, Error> {
        if !self.extensions().await?.has_locks() {
            return self.force_by_deletion(claim).await;
        }
        let claim = Claim { path: self.absolute(&claim.path), token: claim.token };
        match self.call(Request::ForceRelease(claim)).await?.response {
            Response::Held(held) => Ok(held == [true]),
            _ => Err(Error::Protocol("a forced release was answered with something else")),
        }
    }

    /// The name of a queue znode is never used again, so the one that is looked at is the one that is deleted.
    async fn force_by_deletion(&self, claim: &Claim) -> Result<bool, Error> {
        self.sync(&claim.path).await?;
        let stat = self.exists(&claim.path).await?;
        if stat.is_none_or(|stat| stat.czxid.0 != claim.token.0) {
            return Ok(false);
        }
        match self.delete(&claim.path, None).await {
            Ok(()) => Ok(true),
            Err(Error::Rejected(rowlock_proto::ErrorCode::NoNode)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A report of the node that we are attached to, as JSON: what its HTTP listener answers to GET of the same path and
    /// query, for instance `/v1/queue?lock=/locks/x`. Paths of znodes are the server's, without this client's chroot.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on plain ZooKeeper; [`Error::Rejected`] (NoNode: no such report; BadArguments); the end of
    /// the session.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report(&self, path: &str) -> Result<String, Error> {
        match self.call(Request::Report(path.to_owned())).await?.response {
            Response::Report(json) => Ok(json),
            _ => Err(Error::Protocol("a report was answered with something else")),
        }
    }
}
