//! Locks that an operator takes away from their holder.

use rowlock_proto::Request;
use rowlock_proto::lock::Claim;
use rowlock_proto::response::Response;
use rowlock_proto::{FencingToken, Right};
use rowlock_state::command::Command;
use rowlock_state::rules::Decision;

use super::call::Call;
use super::{Api, Caller, LockName, Refusal};
use crate::zk::Opener;

/// The lease that the command is sent by, milliseconds: it is clamped to the shortest one.
const TTL_MS: u32 = 1_000;
/// Stands for a lock-delay instead of a holder.
const OF_DELAY: FencingToken = FencingToken(0);

impl Api {
    /// Returns whether a rule that names the lock grants the caller this right, as far as this node knows.
    pub fn grants(&self, caller: &Caller, lock: &LockName, right: Right) -> bool {
        let state = self.context.replica.state.read();
        let Decision { rights, pattern } = state.rules().decide(lock.path(), &caller.identities, true);
        pattern.is_some() && rights.has(right)
    }

    /// Takes the lock away from the holder with this token, or ends its lock-delay if the token is 0. Whether
    /// there was anything; repeating it is no error. The caller checks the permission.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`]: the lock's ACL does not allow the caller to delete. [`Refusal::Unknown`]:
    /// repeat it.
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
            // This lease, which the caller does not know of: it lasts no longer than a stall of the cluster.
            Err(Refusal::LeaseOver) => Err(Refusal::Unknown),
            Err(refusal) => Err(refusal),
            Ok(other) => unreachable!("a forced release tells what was held: {other:?}"),
        }
    }
}
