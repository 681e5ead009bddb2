//! The current leader, and the moment from which a leader may propose.
//!
//! A fresh leader answers `ForwardToLeader { leader: None }` until a quorum has acknowledged the leadership,
//! and no error of a write proves that the write was lost. So a new leader first commits an entry that is
//! safe to repeat (an empty batch), retrying as often as needed; only then is the leader `ready`, and
//! clients' commands enter the log.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::decides;
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::command::Batch;

use super::Raft;
use crate::node_hook::Hook;
use crate::raft_types::Payload;

/// A node's view of the leadership. Terms and leaders only move forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Raft term of this view.
    pub term: u64,
    /// Leader of that term, if known.
    pub leader: Option<NodeId>,
    /// This node is that leader and has committed an entry in this term.
    pub ready: bool,
}

impl Leadership {
    /// Returns whether `me` is the leader of this view and may propose.
    pub fn is_led_by(&self, me: NodeId) -> bool {
        assert!(!self.ready || self.leader.is_some(), "a leader that is ready is known");
        decides!("node-leads", self.ready && self.leader == Some(me))
    }
}

const RETRY: Duration = Duration::from_millis(20);
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
const _: () = assert!(RETRY.as_millis() < WRITE_DEADLINE.as_millis());

/// Follows Raft's metrics, publishes the leadership, and opens the gate after this node has become leader.
/// Ends with Raft.
pub async fn follow(me: NodeId, raft: Raft, leadership: watch::Sender<Leadership>, hook: Hook) {
    let mut metrics = raft.server_metrics();
    let mut gate = pin!(None);
    loop {
        let (term, leader) = {
            let now = metrics.borrow_and_update();
            (now.vote.leader_id.term, now.current_leader.map(NodeId))
        };
        let changed = leadership.send_if_modified(|view| {
            assert!(term >= view.term, "a node's term never goes back");
            let changed = (view.term, view.leader) != (term, leader);
            if changed {
                *view = Leadership { term, leader, ready: false };
            }
            changed
        });
        if changed {
            gate.set(None);
            hook.notify(|hook| match leader {
                Some(leader) if leader == me => hook.leads(term),
                _ => hook.follows(term, leader),
            });
        }
        let view = *leadership.borrow();
        let must_open = decides!("leader-is-not-ready", view.leader == Some(me) && !view.ready);
        // Other changes of the metrics leave the gate alone: its batch would be committed a second time.
        if must_open && gate.is_none() {
            gate.set(Some(open_gate(&raft)));
        }
        tokio::select! {
            biased;
            changed = metrics.changed() => if changed.is_err() { return },
            opened = poll_fn(|cx| gate.as_mut().as_pin_mut().map_or(Poll::Pending, |gate| gate.poll(cx))) => {
                gate.set(None);
                leadership.send_if_modified(|view| {
                    let same = opened && (view.term, view.leader) == (term, leader);
                    view.ready |= same;
                    same
                });
            },
        }
    }
}

/// Commits an empty batch, in the first version, which every node reads. The caller drops this future when
/// another node leads, and retries after a failure; an empty batch is safe to repeat.
async fn open_gate(raft: &Raft) -> bool {
    let write = raft.client_write(Payload(Batch::default().encode()));
    match time::timeout(WRITE_DEADLINE, write).await {
        Ok(Ok(_)) => true,
        Ok(Err(e)) => {
            tracing::debug!(error = %e, "not yet able to commit as leader");
            time::sleep(RETRY).await;
            false
        }
        Err(_) => false,
    }
}
