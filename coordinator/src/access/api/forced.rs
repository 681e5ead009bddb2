//! Locks taken away from their holder by an operator.

use rowlock_proto::Request;
use rowlock_proto::lock::Claim;
use rowlock_proto::response::Response;
use rowlock_proto::{FencingToken, Right};
use rowlock_state::command::Command;
use rowlock_state::rules::Decision;

use super::call::Call;
use super::{Api, Caller, LockName, Refusal};
use crate::node::zk::Opener;

/// TTL of the lease for the command, in milliseconds; clamped to the shortest session timeout.
const TTL_MS: u32 = 1_000;
/// Token that selects a lock-delay instead of a holder.
const OF_DELAY: FencingToken = FencingToken(0);

impl Api {
    /// Returns whether a rule for the lock grants the caller this right, according to the local state.
    pub fn grants(&self, caller: &Caller, lock: &LockName, right: Right) -> bool {
        let state = self.context.replica.state.read();
        let Decision { rights, pattern } = state.rules().decide(lock.path(), &caller.identities, true);
        pattern.is_some() && rights.has(right)
    }

    /// Takes the lock away from the holder of this token, or ends the lock-delay if the token is 0. Returns
    /// false if there was neither; repeating the request is no error. The caller checks the permission.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`]: the lock's ACL does not permit the caller to delete. [`Refusal::Unknown`]:
    /// repeat the request.
    pub async fn force(
        &self,
        caller: &Caller,
        lock: &LockName,
        token: FencingToken,
    ) -> Result<bool, Refusal> {
        self.check_serving()?;
        Call::new(self, caller).sync().await?;
        let holder = {
            let state = self.context.replica.state.read();
            let queue = state.lock_queue(lock.path());
            queue.and_then(|queue| {
                queue.holders().find(|holder| holder.token == token).map(|it| it.path.into())
            })
        };
        let path = match holder {
            Some(path) => path,
            None if token == OF_DELAY => lock.path().into(),
            None => return Ok(false),
        };
        let command = Command::Client(Request::ForceRelease(Claim { path, token }));
        let secret = self.open_as(caller, TTL_MS, Opener::Operator).await?.secret;
        let done = Call::new(self, caller).act(&secret, command).await;
        self.close_unused(caller, &secret).await;
        match done {
            Ok(Response::Held(held)) => Ok(held.contains(&true)),
            // The internal lease expired during a stall of the cluster; the caller does not know this lease.
            Err(Refusal::LeaseOver) => Err(Refusal::Unknown),
            Err(refusal) => Err(refusal),
            Ok(other) => unreachable!("a forced release tells what was held: {other:?}"),
        }
    }
}
