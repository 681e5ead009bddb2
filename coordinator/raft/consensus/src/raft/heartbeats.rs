//! Heartbeats of a leader, replacing openraft's ticks: those wake followers, too, and a leader five times per
//! heartbeat.

use std::time::Duration;

use openraft::ServerState;
use openraft::storage::RaftStateMachine;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::time::{self, Instant};

use crate::raft_types::TypeConfig;

/// Returns the time of the heartbeat after one at `last`. Only a number of beats ends on a beat: others would
/// end early, and an answer must come before the next heartbeat.
fn next_after(last: Instant, every: Duration) -> Instant {
    let is_on_beats = every.as_nanos().is_multiple_of(time::BEAT.as_nanos());
    if is_on_beats { time::about_after(last, every) } else { last + every }
}

/// Sends a heartbeat to all other members every `every` while this node leads. Ends with Raft.
pub async fn send<SM: RaftStateMachine<TypeConfig>>(raft: openraft::Raft<TypeConfig, SM>, every: Duration) {
    assert!(!every.is_zero(), "heartbeats without pauses leave no time for entries");
    let (mut server, mut due) = (raft.server_metrics(), None);
    loop {
        let leads = server.borrow_and_update().state == ServerState::Leader;
        // Other changes, such as a change of members, do not delay a heartbeat.
        due = leads.then(|| due.unwrap_or_else(|| next_after(time::now(), every)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_keep_their_interval_and_end_on_a_beat_only_if_they_can() {
        let (last, ms) = (time::now(), Duration::from_millis);
        assert_eq!([10, 100, 250].map(|every| next_after(last, ms(every)) - last), [10, 100, 250].map(ms));
        let on_beat = next_after(last, time::BEAT);
        assert_eq!(next_after(on_beat, time::BEAT) - on_beat, time::BEAT);
    }
}
