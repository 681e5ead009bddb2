//! Heartbeats of a leader, replacing openraft's ticks: those wake followers, too, and a leader five times per
//! heartbeat.

use std::time::Duration;

use openraft::ServerState;
use openraft::storage::RaftStateMachine;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::time;

use crate::raft_types::TypeConfig;

/// Sends a heartbeat to all other members every `every`, or up to a [`time::BEAT`] earlier, while this node
/// leads. Ends with Raft.
pub async fn send<SM: RaftStateMachine<TypeConfig>>(raft: openraft::Raft<TypeConfig, SM>, every: Duration) {
    assert!(!every.is_zero(), "heartbeats without pauses leave no time for entries");
    let (mut server, mut due) = (raft.server_metrics(), None);
    loop {
        let leads = server.borrow_and_update().state == ServerState::Leader;
        // Other changes, such as a change of members, do not delay a heartbeat.
        due = leads.then(|| due.unwrap_or_else(|| time::about(every)));
        tokio::select! {
            biased;
            changed = server.changed() => if changed.is_err() { return },
            () = time::sleep_until(due.unwrap_or_else(time::now)), if due.is_some() => {
                due = None;
                if raft.trigger().heartbeat().await.is_err() {
                    return;
                }
            }
        }
    }
}
