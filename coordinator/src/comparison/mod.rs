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

use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use tokio::sync::mpsc;

pub use marks::{Difference, Marks};

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::{self, Raft};

use crate::delivery::outbox;
use crate::proposer::{Proposer, Submission};
use crate::replica::Replica;

/// Between two marks, if anything has changed. A mark and the digests are as many small commands as there are
/// nodes, and one; a digest is kept up to date by every change, so that it costs nothing to read. A node
/// without others makes none.
const EVERY: Duration = Duration::from_secs(5);

/// What the task needs.
pub struct Comparison {
    /// This node.
    pub me: NodeId,
    /// Who the voters are.
    pub raft: Raft,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// What has changed.
    pub replica: Arc<Replica>,
    /// What apply has noted.
    pub marks: Arc<Marks>,
    /// Where the leader's marks go.
    pub batcher: mpsc::Sender<TermBatch>,
    /// Where this node's digests go.
    pub proposer: Proposer,
}

impl Comparison {
    /// Runs until `shutdown`, or until this node must stop.
    pub async fn run(self, shutdown: Shutdown) -> Option<Difference> {
        let (mut leadership, mut news) = (self.leadership.clone(), self.marks.news());
        let (mut marked, mut next) = (None, time::now());
        loop {
            let view = *leadership.borrow_and_update();
            let state = (view.term, self.replica.state.read().last_zxid());
            let leads = view.ready && view.leader == Some(self.me);
            if leads && time::now() >= next && marked != Some(state) && !raft::is_alone(&self.raft) {
                marked = Some(state);
                self.mark(view.term).await;
            }
            if time::now() >= next {
                next = time::now() + EVERY;
            }
            news.borrow_and_update();
            if let Some(command) = self.marks.to_tell() {
                self.tell(command);
            }
            if let Some(difference) = self.marks.judge(&raft::voters(&self.raft)) {
                return Some(difference);
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return None,
                changed = leadership.changed() => if changed.is_err() { return None },
                changed = news.changed() => if changed.is_err() { return None },
                () = time::sleep_until(next) => {}
            }
        }
    }

    async fn mark(&self, term: u64) {
        let mark = Proposal {
            origin: Origin::default(),
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command: Command::CompareDigests,
        };
        // The folder empties its queue even when the term is over.
        let _ = self.batcher.send(TermBatch { term, proposals: vec![mark] }).await;
    }

    /// With a full queue this mark is done without.
    fn tell(&self, command: Command) {
        let submission = Submission {
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command,
            // It is read from the log, like that of the others.
            reply_to: outbox::channel().0,
            tag: 0,
            received: time::now(),
        };
        let _ = self.proposer.try_submit(submission);
    }
}
