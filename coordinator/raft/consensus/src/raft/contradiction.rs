//! Requests of leaders whose log lacks entries that this node has applied: the cluster has restarted after a
//! loss of power without those entries (`docs/decisions/memory-locks.md`, rule 6).

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use openraft::Raft;
use openraft::storage::RaftStateMachine;

use crate::raft_types::{LogId, RaftRequest, RaftResponse, SnapshotStep, TypeConfig, Vote};

/// Returns the index of the first position in a request at which this node's log has another entry.
pub type Find = Arc<dyn Fn(&RaftRequest) -> Option<u64> + Send + Sync>;
/// Drops the state of this node.
pub type DropState = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Leaders whose log lacks entries that this node has applied: the cluster has restarted without them.
#[derive(Clone)]
pub struct Contradiction {
    pub find: Find,
    pub drop_state: DropState,
}

impl Default for Contradiction {
    /// Finds no contradiction in any request.
    fn default() -> Self {
        let drop_state = || std::future::ready(()).boxed();
        Contradiction { find: Arc::new(|_| None), drop_state: Arc::new(drop_state) }
    }
}

/// Returns the last position up to this index that the sender's log has, if the request says one.
///
/// If this position agrees with another log, all earlier positions agree, too (*log-matching*).
pub(super) fn last_shared(request: &RaftRequest, upto: u64) -> Option<LogId> {
    let known = |id: &LogId| id.index <= upto;
    match request {
        RaftRequest::Append(request) => {
            let entries = request.entries.iter().rev().map(|entry| entry.log_id);
            entries.chain(request.prev_log_id).find(known)
        }
        RaftRequest::Snapshot(SnapshotStep::Begin { meta, .. }) => meta.last_log_id.filter(known),
        _ => None,
    }
}

/// Returns the positions that the sender's log has, in order.
pub(super) fn ids_in(request: &RaftRequest) -> impl Iterator<Item = LogId> {
    let (first, entries) = match request {
        RaftRequest::Append(request) => (request.prev_log_id, &request.entries[..]),
        RaftRequest::Snapshot(SnapshotStep::Begin { meta, .. }) => (meta.last_log_id, &[][..]),
        _ => (None, &[][..]),
    };
    first.into_iter().chain(entries.iter().map(|entry| entry.log_id))
}

/// Returns the vote of the leader whose log the request describes.
pub(super) fn sent_by(request: &RaftRequest) -> Option<Vote> {
    match request {
        RaftRequest::Append(request) => Some(request.vote),
        RaftRequest::Snapshot(SnapshotStep::Begin { vote, .. }) => Some(*vote),
        _ => None,
    }
}

/// Handles a request of a leader whose log has another entry at the index. The request `proceeds` if this
/// node has not applied its own entry: Raft replaces the entry. Raft refuses deposed leaders.
pub(super) async fn contradicted<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    (sender, index): (Vote, u64),
    drop_state: DropState,
    proceeds: BoxFuture<'static, RaftResponse>,
) -> RaftResponse {
    let is_left_behind = raft.with_raft_state(move |state| {
        let applies = state.local_committed().is_some_and(|committed| index <= committed.index);
        applies && sender >= *state.vote_ref()
    });
    if matches!(is_left_behind.await, Ok(true)) {
        drop_state().await;
        return RaftResponse::Failed("it has applied entries that the cluster has forgotten".into());
    }
    proceeds.await
}
