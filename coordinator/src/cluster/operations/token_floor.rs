//! Raises the fencing tokens of this cluster above those of another service, through the log, for an operator
//! who moves locks to this cluster.

use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, FencingToken};
use rowlock_state::TOKEN_FLOOR_MAX;
use rowlock_state::command::Command;
use serde_json::{Value, json};

use crate::node::context::NodeContext;
use crate::node::delivery::outbox;
use crate::node::proposer::Submission;

/// Raises the tokens of all future queue positions above `above`. Positions that are in a queue already keep
/// their tokens; the document counts those positions.
///
/// # Errors
/// `BadArguments`: no room would be left. `OperationTimeout`: the floor may be raised, or may still be
/// raised.
///
/// # Cancel safety
/// Once polled, the floor may be raised even when the future is dropped.
pub(super) async fn raise(
    node: &NodeContext,
    above: FencingToken,
    deadline: Instant,
) -> Result<Value, ErrorCode> {
    if !(0..=TOKEN_FLOOR_MAX).contains(&above.0) {
        return Err(ErrorCode::BadArguments);
    }
    let (reply_to, inbox) = outbox::channel();
    let submission = Submission::of_node(Command::RaiseTokens { above }, reply_to);
    node.proposer.submit(submission).await.map_err(|_| ErrorCode::OperationTimeout)?;
    if !time::timeout_at(deadline, inbox.is_applied()).await.unwrap_or(false) {
        return Err(ErrorCode::OperationTimeout);
    }
    let state = node.replica.state.read();
    let counts = state.counts();
    assert!(state.last_zxid().0 >= above.0, "the floor is applied here");
    tracing::info!(%above, "fencing tokens raised by an operator");
    let places = counts.lock_holders + counts.lock_waiters;
    Ok(json!({ "above": above.to_string(), "places": places }))
}
