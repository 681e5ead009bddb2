//! Raises the fencing tokens of this cluster above those that another service has given: through the log, for
//! an operator who moves locks here.

use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, FencingToken};
use rowlock_state::TOKEN_FLOOR_MAX;
use rowlock_state::command::Command;
use serde_json::{Value, json};

use crate::delivery::outbox;
use crate::end_session::EndSession;
use crate::proposer::Submission;

/// Has all tokens of places that are taken from now on be larger than `above`. Places that are in a queue
/// already keep theirs; the document counts the places.
///
/// # Errors
/// `BadArguments`: no room would be left. `OperationTimeout`: the floor may be raised, or may still be.
///
/// # Cancel safety
/// Once polled, the floor may be raised even when the future is dropped.
pub(super) async fn raise(
    by: &EndSession,
    above: FencingToken,
    deadline: Instant,
) -> Result<Value, ErrorCode> {
    if !(0..=TOKEN_FLOOR_MAX).contains(&above.0) {
        return Err(ErrorCode::BadArguments);
    }
    let (reply_to, inbox) = outbox::channel();
    let submission = Submission::of_node(Command::RaiseTokens { above }, reply_to);
    by.proposer.submit(submission).await.map_err(|_| ErrorCode::OperationTimeout)?;
    if !time::timeout_at(deadline, inbox.is_applied()).await.unwrap_or(false) {
        return Err(ErrorCode::OperationTimeout);
    }
    let state = by.replica.state.read();
    let counts = state.counts();
    assert!(state.last_zxid().0 >= above.0, "the floor is applied here");
    tracing::info!(%above, "fencing tokens raised by an operator");
    let places = counts.lock_holders + counts.lock_waiters;
    Ok(json!({ "above": above.to_string(), "places": places }))
}
