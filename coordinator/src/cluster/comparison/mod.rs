//! Whether the replicas are the same: their digests are compared through the log, and a node that differs
//! stops.
//!
//! The leader puts a mark into the log now and then ([`Command::CompareDigests`]). Every node notes its
//! digest right behind the mark's entry, the same position on all of them, and puts it into the log as well
//! ([`Command::DigestAt`]). So every node sees what every other one has, and judges itself. The leader has no
//! say: a leader whose state is wrong stops like any other node, and the majority goes on without it.

mod marks;

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_proto::Zxid;
use rowlock_state::command::Command;

pub use marks::{Difference, Marks};

use rowlock_consensus::raft::{self, Raft};

use crate::delivery::outbox;
use crate::leader_duties::{Due, Duty};
use crate::proposer::{Proposer, Submission};
use crate::replica::Replica;

/// Between two marks, if anything has changed. A mark and the digests are as many small commands as there are
/// nodes, and one; a digest is kept up to date by every change, so that it costs nothing to read. A node
/// without others makes none.
const EVERY: Duration = Duration::from_secs(5);

/// Proposes the leader's marks.
pub struct DigestMarks {
    raft: Raft,
    replica: Arc<Replica>,
    /// The term and the state of the last mark.
    marked: Option<(u64, Zxid)>,
}

impl DigestMarks {
    /// `replica` tells whether anything has changed since the last mark.
    pub fn new(raft: Raft, replica: Arc<Replica>) -> DigestMarks {
        DigestMarks { raft, replica, marked: None }
    }
}

impl Duty for DigestMarks {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        let state = (term, self.replica.state.read().last_zxid());
        let is_due = self.marked != Some(state) && !raft::is_alone(&self.raft);
        if is_due {
            self.marked = Some(state);
        }
        Due {
            commands: is_due.then_some(Command::CompareDigests).into_iter().collect(),
            next: Some(now + EVERY),
        }
    }
}

/// The task that tells this node's digests and judges them.
pub struct Comparison {
    /// Who the voters are.
    pub raft: Raft,
    pub marks: Arc<Marks>,
    /// Where this node's digests go.
    pub proposer: Proposer,
}

impl Comparison {
    /// Returns when this node must stop.
    pub async fn run(self) -> Difference {
        let mut news = self.marks.news();
        loop {
            news.borrow_and_update();
            if let Some(command) = self.marks.to_tell() {
                self.tell(command);
            }
            if let Some(difference) = self.marks.judge(&raft::voters(&self.raft)) {
                return difference;
            }
            // The voters may have changed meanwhile.
            let _ = time::timeout(EVERY, news.changed()).await;
        }
    }

    /// With a full queue this mark is done without.
    fn tell(&self, command: Command) {
        // The outcome is read from the log, like those of the other nodes.
        let _ = self.proposer.try_submit(Submission::of_node(command, outbox::channel().0));
    }
}
