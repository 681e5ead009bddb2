//! Listener's side of vote requests: leases, memory and logs decide whether this node asks its Raft for a
//! vote.

use std::fmt;

use openraft::Raft;
use openraft::RaftState;
use openraft::errors::Fatal;
use openraft::storage::RaftStateMachine;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_wal::Memory;
use tokio::sync::oneshot;

use super::lease::LeaderLease;
use super::recollection::Recollection;
use crate::raft_types::{LogId, RaftResponse, TypeConfig, VoteRequest, VoteResponse};

/// Returns the request to evaluate: with the mutant every log counts as the newest.
fn believed(mut request: VoteRequest) -> VoteRequest {
    if mutant::is(Mutant::VoteForStaleLog) {
        request.last_log_id = Some(LogId::new(request.vote.leader_id, u64::MAX));
    }
    request
}

/// Votes for a usual leader, unless this node has forgotten entries.
pub(super) async fn usual_vote<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: VoteRequest,
    lease: LeaderLease,
    recollection: Recollection,
) -> RaftResponse {
    if recollection.votes_usually() {
        return vote(raft, request, lease).await;
    }
    rare::taken(Rare::VoteRefused);
    answer(would_vote(&raft, None).await, RaftResponse::Vote)
}

/// Votes for a leader that restarts the cluster. A node without the flushed part of its log does not vote.
pub(super) async fn restart_vote<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: VoteRequest,
    lease: LeaderLease,
    recollection: Recollection,
) -> RaftResponse {
    let _held = recollection.voting().await;
    if recollection.memory() == Memory::Dropped {
        return answer(would_vote(&raft, None).await, RaftResponse::Vote);
    }
    vote(raft, request, lease).await
}

/// Converts the answer to a pre-vote, if this node has forgotten entries. A node without its log answers like
/// a node without entries: neither its vote nor its refusal counts.
pub(super) fn as_remembered(answer: RaftResponse, recollection: &Recollection) -> RaftResponse {
    match answer {
        RaftResponse::Vote(response) if !recollection.votes_usually() => {
            RaftResponse::ForgetfulVote(match recollection.memory() {
                Memory::Dropped => VoteResponse { vote_granted: false, last_log_id: None, ..response },
                _ => response,
            })
        }
        other => other,
    }
}

/// Requests a vote from Raft, unless a lease lasts. The request tells openraft to ignore its own lease, which
/// has another length.
async fn vote<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: VoteRequest,
    lease: LeaderLease,
) -> RaftResponse {
    if decides!("lease-refuses-vote", !request.leadership_transfer && lease.lasts()) {
        rare::taken(Rare::VoteRefused);
        return answer(would_vote(&raft, None).await, RaftResponse::Vote);
    }
    let voting = lease.voting(request.vote.leader_id.term);
    let response = raft.vote(VoteRequest { leadership_transfer: true, ..believed(request) }).await;
    if response.as_ref().is_ok_and(|response| response.vote_granted) {
        voting.granted();
    } else {
        rare::taken(Rare::VoteRefused);
    }
    answer(response, RaftResponse::Vote)
}

/// Returns whether this node would vote for the candidate. Changes nothing.
pub(super) async fn pre_vote<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: VoteRequest,
    lease: LeaderLease,
) -> RaftResponse {
    let request = (!lease.lasts()).then(|| believed(request));
    let response = would_vote(&raft, request).await.map(|response| VoteResponse {
        // Raft may have voted in the meantime.
        vote_granted: decides!("pre-vote-may-be-granted", response.vote_granted && !lease.awaits_votes()),
        ..response
    });
    if response.as_ref().is_ok_and(|response| !response.vote_granted) {
        rare::taken(Rare::PreVoteRefused);
    }
    answer(response, RaftResponse::Vote)
}

/// Returns this node's vote and the end of its log, and whether both permit a vote for the candidate.
async fn would_vote<SM: RaftStateMachine<TypeConfig>>(
    raft: &Raft<TypeConfig, SM>,
    request: Option<VoteRequest>,
) -> Result<VoteResponse, Fatal<TypeConfig>> {
    let (found, state) = oneshot::channel();
    let question = move |state: &RaftState<TypeConfig>| {
        let (vote, last) = (*state.vote_ref(), state.log_ids.last().copied());
        let granted = request.is_some_and(|request| {
            decides!("candidate-is-up-to-date", request.last_log_id >= last && request.vote >= vote)
        });
        let _ = found.send(VoteResponse::new(vote, last, granted));
    };
    raft.external_request(question).await?;
    state.await.map_err(|_| Fatal::Stopped)
}

pub(super) fn answer<T, E: fmt::Display>(
    result: Result<T, E>,
    response: impl FnOnce(T) -> RaftResponse,
) -> RaftResponse {
    result.map_or_else(|error| RaftResponse::Failed(error.to_string()), response)
}
