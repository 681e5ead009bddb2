//! exactly-once and bounded: a numbered write takes effect once and has one outcome, and a session keeps no
//! more outcomes than its limits allow.

use std::collections::BTreeMap;

use rowlock_proto::lock::QueuePosition;
use rowlock_proto::response::OpResult;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId};
use rowlock_state::command::{Command, Proposal};
use rowlock_state::outcome::Applied;
use rowlock_state::{Machine, OUTCOMES_MAX, OUTCOMES_MAX_BYTES};

type Answer = Result<Response, ErrorCode>;

/// The writes of each session that its client has not acknowledged, by number, with their first answers.
#[derive(Default)]
pub struct Numbered {
    sessions: BTreeMap<SessionId, Unacknowledged>,
}

#[derive(Default)]
struct Unacknowledged {
    acked: u64,
    first: BTreeMap<u64, (Command, Answer)>,
}

impl Numbered {
    pub fn check(&mut self, before: &Machine, proposal: &Proposal, applied: &Applied) -> Result<(), String> {
        let Command::Tagged { id, acked, command } = &proposal.command else { return Ok(()) };
        let answer = &applied.result;
        if let Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired) = answer {
            return Ok(());
        }
        let known = self.sessions.entry(proposal.session).or_default();
        known.acked = known.acked.max(*acked);
        known.first.retain(|id, _| *id > known.acked);
        let was_run = applied.zxid != before.last_zxid();
        let what = |what: &str| Err(format!("write {id} of {}: {what}: {answer:?}", proposal.session));
        if *id <= known.acked {
            return if was_run { what("was run although its client knew the outcome") } else { Ok(()) };
        }
        if let Some((sent, first)) = known.first.get(id) {
            return match was_run {
                true => what("was run again"),
                false if sent == &**command && !is_the_same(first, answer) => {
                    what(&format!("was answered {first:?} before"))
                }
                false => Ok(()),
            };
        }
        let bytes: usize = known.first.values().map(|(_, answer)| bytes_at_least(answer)).sum();
        let is_full = known.first.len() >= OUTCOMES_MAX || bytes >= OUTCOMES_MAX_BYTES;
        if *answer == Err(ErrorCode::ThrottledOp) {
            return match was_run || known.first.is_empty() {
                true => what("was refused, and run or not in the way of anything"),
                false => Ok(()),
            };
        }
        known.first.insert(*id, ((**command).clone(), answer.clone()));
        if is_full { what("was run beside as many outcomes as may be kept") } else { Ok(()) }
    }
}

/// A place is answered as it stands now.
fn is_the_same(first: &Answer, again: &Answer) -> bool {
    match (first, again) {
        (Ok(Response::QueuePositions(first)), Ok(Response::QueuePositions(again))) => {
            let is_same = |(first, again)| match (token(first), token(again)) {
                // A later write may have made another place under the same name.
                (Some(first), Some(again)) => first <= again,
                (Some(_), None) => *again == QueuePosition::Absent,
                (None, None) => true,
                (None, Some(_)) => false,
            };
            first.len() == again.len() && first.iter().zip(again).all(is_same)
        }
        _ => first == again,
    }
}

fn token(position: &QueuePosition) -> Option<FencingToken> {
    match position {
        QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. } => Some(claim.token),
        _ => None,
    }
}

/// The least that it takes to keep an answer.
fn bytes_at_least(answer: &Answer) -> usize {
    let results = if let Ok(Response::Multi(results)) = answer { results.len() } else { 1 };
    results * size_of::<OpResult>()
}
