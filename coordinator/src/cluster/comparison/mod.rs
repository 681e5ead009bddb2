//! Comparison of the replicas: the nodes exchange digests of their states through the log, and a differing
//! node stops.
//!
//! The leader writes a mark into the log at intervals ([`Command::CompareDigests`]). Every node records its
//! digest right after the mark's entry, the same position on all nodes, and writes the digest into the log as
//! well ([`Command::DigestAt`]). So every node sees the digests of all others and decides about itself. The
//! leader has no special part: a leader with a wrong state stops like any other node, and the majority
//! continues.

mod marks;

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::Zxid;
use rowlock_state::command::Command;

pub use marks::{Difference, Marks};

use rowlock_consensus::raft;

use crate::node::context::NodeContext;
use crate::node::delivery::outbox;
use crate::node::leader_duties::{Due, LeaderDuty};
use crate::node::proposer::Submission;

/// Interval of the marks, if the state has changed. A mark costs as many small commands as there are nodes,
/// plus one; each change updates the digest, so that reading the digest is free. A node without others writes
/// no marks.
const EVERY: Duration = Duration::from_secs(5);

/// Proposes the leader's marks.
pub struct DigestMarks {
    node: Arc<NodeContext>,
    /// Term and zxid of the last mark.
    marked: Option<(u64, Zxid)>,
}

impl DigestMarks {
    pub fn new(node: Arc<NodeContext>) -> DigestMarks {
        DigestMarks { node, marked: None }
    }
}

impl LeaderDuty for DigestMarks {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        let state = (term, self.node.replica.state.read().last_zxid());
        let is_due =
            decides!("comparison-is-due", self.marked != Some(state) && !raft::is_alone(&self.node.raft));
        if is_due {
            self.marked = Some(state);
        }
        Due {
            commands: is_due.then_some(Command::CompareDigests).into_iter().collect(),
            next: Some(now + EVERY),
        }
    }
}

/// Task that publishes this node's digests and compares all digests.
pub struct Comparison {
    pub node: Arc<NodeContext>,
    pub marks: Arc<Marks>,
}

impl Comparison {
    /// Returns when this node must stop.
    pub async fn run(self) -> Difference {
        let mut news = self.marks.news();
        loop {
            news.borrow_and_update();
            if let Some(command) = self.marks.take_due_digest() {
                self.publish(command);
            }
            if let Some(difference) = self.marks.find_difference(&raft::voters(&self.node.raft)) {
                return difference;
            }
            // The voters may have changed meanwhile.
            let _ = time::timeout(EVERY, news.changed()).await;
        }
    }

    /// Publishes a digest. A full queue drops it: the next mark follows.
    fn publish(&self, command: Command) {
        // The node reads the outcome from the log, like the digests of the other nodes.
        let _ = self.node.proposer.try_submit(Submission::of_node(command, outbox::channel().0));
    }
}
