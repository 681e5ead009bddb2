//! bounded: a session keeps no more outcomes than its limits allow, refuses no write without need, and an
//! answer is in proportion to its request.

use std::collections::BTreeMap;

use rowlock_proto::lock::{Party, QueuePosition};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{ErrorCode, SessionId};
use rowlock_state::command::{Batch, Command, Proposal};
use rowlock_state::outcome::Applied;
use rowlock_state::{OUTCOMES_MAX, OUTCOMES_MAX_BYTES, PARTIES_MAX_BYTES};

/// An answer's bytes for each of the request's: a multi of the shortest setData is answered with Stats.
const ANSWER_PER_REQUEST: usize = 8;

/// The number up to which each session's client knows its writes, and the least bytes of each further write.
#[derive(Default)]
pub struct Bounds(BTreeMap<SessionId, (u64, BTreeMap<u64, usize>)>);

impl Bounds {
    pub fn check(&mut self, was_run: bool, proposal: &Proposal, applied: &Applied) -> Result<(), String> {
        if was_run {
            an_answer_is_in_proportion_to_its_request(proposal, applied)?;
        }
        let Command::Tagged { id, acked, .. } = &proposal.command else { return Ok(()) };
        if let Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired) = applied.result {
            return Ok(());
        }
        let (known, kept) = self.0.entry(proposal.session).or_default();
        *known = *acked.max(known);
        kept.retain(|id, _| id > known);
        // Without this write its client acknowledges nothing more.
        let is_next = *id == *known + 1;
        let bytes: usize = kept.values().sum();
        let is_full = kept.len() >= OUTCOMES_MAX || bytes >= OUTCOMES_MAX_BYTES;
        match was_run {
            false if applied.result == Err(ErrorCode::ThrottledOp) && (is_next || kept.is_empty()) => {
                Err(format!("write {id} was refused and nothing was in the way"))
            }
            true if is_full && !is_next => {
                Err(format!("write {id} was run beside as many outcomes as may be kept"))
            }
            true => {
                let results =
                    if let Ok(Response::Multi(results)) = &applied.result { results.len() } else { 1 };
                kept.insert(*id, results * size_of::<OpResult>());
                Ok(())
            }
            false => Ok(()),
        }
    }
}

fn an_answer_is_in_proportion_to_its_request(proposal: &Proposal, applied: &Applied) -> Result<(), String> {
    let request = Batch { proposals: vec![proposal.clone()], ..Batch::default() }.encode().len();
    let answer = match &applied.result {
        Ok(Response::QueuePositions(positions)) => positions.iter().map(position_bytes).sum(),
        Ok(Response::Multi(results)) => results.iter().map(result_bytes).sum(),
        Ok(Response::PathStat(path, _)) => path.len(),
        _ => 0,
    };
    if answer <= ANSWER_PER_REQUEST * request + PARTIES_MAX_BYTES {
        Ok(())
    } else {
        Err(format!("an answer of {answer} bytes to a request of {request}"))
    }
}

fn position_bytes(position: &QueuePosition) -> usize {
    let party = |party: &Party| party.path.len() + party.label.len();
    let holder = |holder: &Option<Party>| holder.as_ref().map_or(0, party);
    match position {
        QueuePosition::Held(claim) => claim.path.len(),
        QueuePosition::Waiting { claim, holder: one, .. } => claim.path.len() + holder(one),
        QueuePosition::Busy { holder: one, .. } => holder(one),
        QueuePosition::Deadlock(circle) => circle.iter().map(party).sum(),
        QueuePosition::LimitIs(_) | QueuePosition::Absent => 0,
    }
}

fn result_bytes(result: &OpResult) -> usize {
    match result {
        OpResult::Create(path) | OpResult::Create2(path, _) => path.len() + 68,
        OpResult::Check | OpResult::Delete => 9,
        _ => 68,
    }
}
