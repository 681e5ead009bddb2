//! Admission of a node that has forgotten acknowledged entries, and the end of a state that the cluster has
//! left behind (`docs/decisions/memory-locks.md`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rowlock_consensus::peer::{Lane, Request, Response};
use rowlock_consensus::raft::contradiction::DropState;
use rowlock_consensus::raft::{Admitter, facts};
use rowlock_env::time::{self, Instant};
use rowlock_wal::{Memory, StorageError};

use super::context::NodeContext;

/// Interval of the requests to the leader.
const ASK_EVERY: Duration = Duration::from_millis(100);
const ASK_DEADLINE: Duration = Duration::from_secs(1);
/// Longest wait for the leader's last entry before this node asks again: the leader may be another one.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// Asks the leader for its last entry until this node has the entry, and remembers from then on.
pub async fn remember(node: Arc<NodeContext>, failed: Arc<dyn Fn(StorageError) + Send + Sync>) {
    if node.recollection.is_whole() {
        return;
    }
    node.metrics.forgotten.set(1);
    tracing::warn!(
        "this node may have lost acknowledged entries about locks with the machine's power: it votes for no usual \
         leader before a leader has admitted it"
    );
    loop {
        if let Some(by) = admitter(&node).await {
            let wait = node.raft.wait(Some(WAIT_MAX));
            let _ = wait.log_index_at_least(Some(by.last_index), "the leader's last entry").await;
            match node.recollection.admit(&node.raft, by).await {
                Ok(true) => return node.metrics.forgotten.set(0),
                Ok(false) => {}
                Err(error) => return failed(error),
            }
        }
        time::sleep(ASK_EVERY).await;
    }
}

/// Returns the leader with the present end of its log.
async fn admitter(node: &NodeContext) -> Option<Admitter> {
    if let Some((term, last_index)) = facts::leads_with(&node.raft).await {
        return Some(Admitter { leader: node.me, term, last_index });
    }
    let leader = facts::leader(&node.raft).filter(|leader| *leader != node.me)?;
    let deadline = Instant::now() + ASK_DEADLINE;
    match node.peers.call(leader, Lane::Control, &Request::Introduce, deadline).await {
        Ok(Response::Introduced(introduction)) => {
            let (term, last_index) = introduction.leads_with?;
            Some(Admitter { leader, term, last_index })
        }
        _ => None,
    }
}

/// Drops this node's state: demands the removal at the next start, and stops the node.
pub fn dropping(
    node: Arc<NodeContext>,
    failed: Arc<dyn Fn(StorageError) + Send + Sync>,
    stop: Arc<dyn Fn() + Send + Sync>,
) -> DropState {
    Arc::new(move || {
        let (recollection, failed, stop) = (node.recollection.clone(), failed.clone(), stop.clone());
        async move {
            if recollection.memory() == Memory::Dropped {
                return;
            }
            tracing::error!(
                "the cluster has restarted without entries that this node has applied: this node stops, and drops its \
                 state at the next start"
            );
            match recollection.drop_state().await {
                Ok(()) => stop(),
                Err(error) => failed(error),
            }
        }
        .boxed()
    })
}
