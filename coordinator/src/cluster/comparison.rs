//! Comparison of the replicas: the nodes exchange digests of their states through the log, and a differing
//! node stops.
//!
//! The leader writes a mark into the log at intervals ([`Command::CompareDigests`]). Every node records its
//! digest right after the mark's entry, the same position on all nodes, and writes the digest into the log as
//! well ([`Command::DigestAt`]). So every node sees the digests of all others and decides about itself. The
//! leader has no special part: a leader with a wrong state stops like any other node, and the majority
//! continues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::raft;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{NodeId, Zxid};
use rowlock_state::Machine;
use rowlock_state::command::{Command, Proposal};
use rowlock_wal::advice::Replace;

use crate::limits::MARKS_MAX;
use crate::node::apply::Observer;
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

/// Digests at the recent marks. Apply records them, and the comparison task decides.
pub struct Marks {
    me: NodeId,
    incarnation: u64,
    kept: Mutex<VecDeque<Mark>>,
    /// Counter of recorded changes.
    changes: watch::Sender<u64>,
}

struct Mark {
    /// Log index of the mark's entry.
    index: u64,
    /// This node's digest after that entry.
    mine: u64,
    /// The latest published digests of the other nodes.
    others: BTreeMap<NodeId, u64>,
    state: MarkState,
}

/// Progress of this node's own digest for a mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MarkState {
    /// Must be published next.
    Due,
    /// Submitted; in the queue or lost.
    Published,
    /// Read from the log by this process.
    Logged,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    me: NodeId,
    index: u64,
    mine: u64,
    /// Voters by their digest.
    voters: BTreeMap<u64, BTreeSet<NodeId>>,
    /// The digest of a majority, if one exists.
    majority: Option<u64>,
}

impl Marks {
    /// Creates an empty record for node `me`. The `incarnation` distinguishes this process from earlier ones.
    pub fn new(me: NodeId, incarnation: u64) -> Self {
        Marks { me, incarnation, kept: Mutex::default(), changes: watch::channel(0).0 }
    }

    fn mark(&self, index: u64, mine: u64) {
        let mut kept = self.kept.lock();
        if kept.back().is_some_and(|last| last.index == index) {
            return;
        }
        // One mark more than the wait allows: the next check decides about the oldest one for the last time.
        if kept.len() > MARKS_MAX {
            kept.pop_front();
        }
        kept.push_back(Mark { index, mine, others: BTreeMap::new(), state: MarkState::Due });
    }

    /// Returns a receiver that changes with every record.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the command that publishes this node's digest at the newest mark, once. Digests at older marks
    /// are not published any more.
    pub fn take_due_digest(&self) -> Option<Command> {
        let mut kept = self.kept.lock();
        let mark = kept.back_mut().filter(|mark| decides!("digest-is-due", mark.state == MarkState::Due))?;
        mark.state = MarkState::Published;
        Some(Command::DigestAt { index: mark.index, digest: mark.mine })
    }

    /// Returns the difference because of which this node must stop: a majority of the voters has another
    /// digest, or no digest can reach a majority.
    ///
    /// While a majority is still possible, this node waits, so that a correct majority never stops: nodes may
    /// be down or behind. The wait ends after [`MARKS_MAX`] marks, because one of the differing nodes gives
    /// wrong answers. Digests from before the start of this process stop the node only if a majority differs:
    /// otherwise a correct node, once stopped for lack of a majority, would never start again.
    pub fn find_difference(&self, voters: &BTreeSet<NodeId>) -> Option<Difference> {
        let kept = self.kept.lock();
        let quorum = voters.len() / 2 + 1;
        kept.iter().enumerate().find_map(|(at, mark)| {
            let is_last_time = at == 0 && kept.len() > MARKS_MAX;
            let mut all: BTreeMap<u64, BTreeSet<NodeId>> = BTreeMap::new();
            let others = mark.others.iter().map(|(node, digest)| (*node, *digest));
            for (node, digest) in
                others.chain([(self.me, mark.mine)]).filter(|(node, _)| voters.contains(node))
            {
                all.entry(digest).or_default().insert(node);
            }
            let majority = all.iter().find(|(_, nodes)| nodes.len() >= quorum).map(|(digest, _)| *digest);
            let most = all.values().map(BTreeSet::len).max().unwrap_or(0);
            let missing = voters.len() - all.values().map(BTreeSet::len).sum::<usize>();
            let stops = match majority {
                Some(digest) => digest != mark.mine,
                None if all.len() < 2 || mark.state != MarkState::Logged => false,
                None => decides!("digests-have-no-majority", most + missing < quorum || is_last_time),
            };
            let (me, index, mine) = (self.me, mark.index, mark.mine);
            (stops && !mutant::is(Mutant::DigestsNotJudged)).then_some(Difference {
                me,
                index,
                mine,
                voters: all,
                majority,
            })
        })
    }
}

impl Observer for Marks {
    /// A batch has been applied: `machine` is the state behind the entry at `index`.
    fn applied(&self, index: u64, proposals: &[Proposal], machine: &Machine) {
        let mut is_news = false;
        for proposal in proposals {
            match proposal.command {
                Command::CompareDigests => self.mark(index, machine.digest()),
                Command::DigestAt { index, digest } => {
                    let is_mine = proposal.origin.node == self.me;
                    let is_of_now = is_mine && proposal.origin.incarnation == self.incarnation;
                    let mut kept = self.kept.lock();
                    let Some(mark) = kept.iter_mut().find(|mark| mark.index == index) else { continue };
                    // What a former process has said may have been the reason why it stopped.
                    if decides!("digest-is-of-this-process", is_of_now) {
                        mark.state = MarkState::Logged;
                    } else if !is_mine {
                        rare::taken(Rare::DigestsCompared);
                        mark.others.insert(proposal.origin.node, digest);
                    }
                }
                _ => continue,
            }
            is_news = true;
        }
        if is_news {
            self.changes.modify(|changes| *changes += 1);
        }
    }

    /// A snapshot has replaced the state: the digests belong to one that is gone.
    fn installed(&self, _: &Machine) {
        self.kept.lock().clear();
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { me, index, mine, voters, majority } = self;
        write!(f, "the replicas differ at log index {index}: node {me} has the digest {mine:016x}")?;
        for (digest, nodes) in voters.iter().filter(|(digest, _)| *digest != mine) {
            let nodes: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
            write!(f, ", {digest:016x} is that of node {}", nodes.join(" and "))?;
        }
        // The digests of the others came through the log, perhaps before this run.
        let advice = Replace::unasked(Some(*me));
        match majority {
            Some(_) => write!(
                f,
                "; a majority has another one, so this node has stopped. Start it once more, in case only its memory was \
                 wrong. If it stops again, compare rowlock --version on all nodes, and report it. {advice}"
            )?,
            None => write!(
                f,
                "; no majority tells which is right, so these nodes have stopped. Start all nodes. If they stop again, \
                 compare rowlock --version on all nodes, keep all folders, and report it"
            )?,
        }
        f.write_str(" (docs/operations.md, \"Replicas differ\")")
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::SessionId;
    use rowlock_state::command::{Attachment, Origin};

    use super::*;

    const ME: NodeId = NodeId(1);

    fn proposal(node: u64, incarnation: u64, command: Command) -> Proposal {
        Proposal {
            origin: Origin { node: NodeId(node), incarnation, request: 1 },
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command,
        }
    }

    fn voters(count: u64) -> BTreeSet<NodeId> {
        (1..=count).map(NodeId).collect()
    }

    /// Node 1 after a mark, with its digest published.
    fn marked(index: u64) -> (Marks, u64) {
        let marks = Marks::new(ME, 7);
        let mine = mark(&marks, index);
        (marks, mine)
    }

    fn mark(marks: &Marks, index: u64) -> u64 {
        marks.applied(index, &[proposal(3, 1, Command::CompareDigests)], &Machine::new());
        let Some(Command::DigestAt { index: told, digest }) = marks.take_due_digest() else {
            panic!("nothing to tell")
        };
        assert_eq!((told, marks.take_due_digest()), (index, None), "it is told once");
        digest
    }

    fn says(marks: &Marks, (node, incarnation): (u64, u64), index: u64, digest: u64) {
        let command = Command::DigestAt { index, digest };
        marks.applied(index + 1, &[proposal(node, incarnation, command)], &Machine::new());
    }

    #[test]
    fn a_node_stops_when_a_majority_has_another_digest() {
        let (marks, mine) = marked(5);
        says(&marks, (2, 1), 5, mine ^ 1);
        assert_eq!(marks.find_difference(&voters(3)), None, "node 3 may agree with this one");
        says(&marks, (3, 1), 5, mine ^ 1);
        let found = marks.find_difference(&voters(3)).expect("it differs");
        assert_eq!(found.majority, Some(mine ^ 1));
        let words = found.to_string();
        assert!(words.contains("node 2 and 3") && words.contains("operations.md"), "{words}");
        if mutant::AVAILABLE {
            let _mistake = mutant::with(Some(Mutant::DigestsNotJudged.into()));
            assert_eq!(marks.find_difference(&voters(3)), None, "the mistake would be seen here");
        }
    }

    #[test]
    fn a_node_with_the_majoritys_digest_goes_on() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 7), 5, mine);
        says(&marks, (2, 1), 5, mine);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert_eq!(marks.find_difference(&voters(3)), None);
        says(&marks, (4, 1), 5, mine ^ 1);
        says(&marks, (5, 1), 5, mine ^ 1);
        assert_eq!(marks.find_difference(&voters(3)), None, "learners have no say");
    }

    #[test]
    fn a_learner_that_differs_from_the_voters_stops() {
        let (marks, mine) = marked(5);
        let others: BTreeSet<NodeId> = (2..=4).map(NodeId).collect();
        says(&marks, (2, 1), 5, mine ^ 1);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert!(marks.find_difference(&others).is_some());
    }

    #[test]
    fn nodes_stop_when_none_can_have_a_majority_any_more() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 7), 5, mine);
        says(&marks, (2, 1), 5, mine ^ 1);
        assert_eq!(marks.find_difference(&voters(2)).map(|found| found.majority), Some(None));
        says(&marks, (3, 1), 5, mine ^ 2);
        assert!(marks.find_difference(&voters(3)).is_some());
    }

    #[test]
    fn a_possible_majority_is_awaited_for_a_bounded_time() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 7), 5, mine);
        says(&marks, (2, 1), 5, mine ^ 1);
        for more in 1..=MARKS_MAX as u64 {
            assert_eq!(marks.find_difference(&voters(3)), None);
            mark(&marks, 5 + 10 * more);
        }
        assert_eq!(marks.find_difference(&voters(3)).map(|found| found.index), Some(5));
    }

    /// The node's own digest of that time may be wrong, and the missing majority of that time is no reason to
    /// stop now.
    #[test]
    fn old_digests_stop_a_restarted_node_only_by_a_majority() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 6), 5, mine ^ 1);
        says(&marks, (2, 1), 5, mine ^ 1);
        for more in 1..=MARKS_MAX as u64 {
            mark(&marks, 5 + 10 * more);
        }
        assert_eq!(marks.find_difference(&voters(3)), None);
        assert_eq!(marks.find_difference(&voters(2)), None);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert!(marks.find_difference(&voters(3)).is_some());
    }

    #[test]
    fn a_snapshot_discards_the_earlier_digests() {
        let (marks, mine) = marked(5);
        marks.installed(&Machine::new());
        says(&marks, (2, 1), 5, mine ^ 1);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert_eq!(marks.find_difference(&voters(3)), None);
    }
}
