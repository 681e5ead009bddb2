//! The digests that apply has met, and what they say about this node. Pure but for its lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use parking_lot::Mutex;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_proto::NodeId;
use rowlock_state::Machine;
use rowlock_state::command::{Command, Proposal};
use rowlock_types::advice::Replace;
use rowlock_types::limits::MARKS_MAX;

/// Shared by apply, which notes, and the task, which judges.
pub struct Marks {
    me: NodeId,
    incarnation: u64,
    kept: Mutex<VecDeque<Mark>>,
    /// Grows with everything noted.
    noted: watch::Sender<u64>,
}

struct Mark {
    /// Of the mark's entry.
    index: u64,
    /// The digest of this node behind it.
    mine: u64,
    /// Of the others, as they said it last.
    others: BTreeMap<NodeId, u64>,
    state: MarkState,
}

/// How far this node's own word about a mark has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MarkState {
    /// It is to be told.
    Due,
    /// It is on its way, or lost.
    Told,
    /// This process has read it in the log.
    Logged,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    me: NodeId,
    index: u64,
    mine: u64,
    /// Digest by digest, the voters that have it.
    voters: BTreeMap<u64, BTreeSet<NodeId>>,
    /// The digest of a majority, if there is one.
    majority: Option<u64>,
}

impl Marks {
    /// Of a node's process, which is told apart from its former ones.
    pub fn new(me: NodeId, incarnation: u64) -> Self {
        Marks { me, incarnation, kept: Mutex::default(), noted: watch::channel(0).0 }
    }

    /// A batch has been applied: `machine` is the state behind the entry at `index`.
    pub fn applied(&self, index: u64, proposals: &[Proposal], machine: &Machine) {
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
                    if is_of_now {
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
            self.noted.modify(|noted| *noted += 1);
        }
    }

    fn mark(&self, index: u64, mine: u64) {
        let mut kept = self.kept.lock();
        if kept.back().is_some_and(|last| last.index == index) {
            return;
        }
        // One more than are waited for: the oldest one is judged for the last time.
        if kept.len() > MARKS_MAX {
            kept.pop_front();
        }
        kept.push_back(Mark { index, mine, others: BTreeMap::new(), state: MarkState::Due });
    }

    /// A snapshot has replaced the state: the digests belong to one that is gone.
    pub fn installed(&self) {
        self.kept.lock().clear();
    }

    /// Changes when something is noted.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.noted.subscribe()
    }

    /// This node's digest behind the newest mark, unless it has been told. Of older ones it is not told any
    /// more.
    pub fn to_tell(&self) -> Option<Command> {
        let mut kept = self.kept.lock();
        let mark = kept.back_mut().filter(|mark| mark.state == MarkState::Due)?;
        mark.state = MarkState::Told;
        Some(Command::DigestAt { index: mark.index, digest: mark.mine })
    }

    /// Whether this node must stop: a majority of the voters has another digest, or none can have a majority.
    ///
    /// While a majority may still come, it is waited for, so that a healthy one never stops: nodes may be
    /// down or behind. But not for ever, since one of those that differ gives wrong answers: only
    /// [`MARKS_MAX`] marks long. Entries from before the start of this process stop it only if a majority
    /// says so: otherwise a node that is right, and has stopped because no node could tell, would never start
    /// again.
    pub fn judge(&self, voters: &BTreeSet<NodeId>) -> Option<Difference> {
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
                None => most + missing < quorum || is_last_time,
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

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { me, index, mine, voters, majority } = self;
        write!(f, "the replicas differ at log index {index}: node {me} has the digest {mine:016x}")?;
        for (digest, nodes) in voters.iter().filter(|(digest, _)| *digest != mine) {
            let nodes: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
            write!(f, ", {digest:016x} is that of node {}", nodes.join(" and "))?;
        }
        // The words of the others came through the log, perhaps before this run.
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

    /// Node 1, which has met a mark and told its digest.
    fn marked(index: u64) -> (Marks, u64) {
        let marks = Marks::new(ME, 7);
        let mine = mark(&marks, index);
        (marks, mine)
    }

    fn mark(marks: &Marks, index: u64) -> u64 {
        marks.applied(index, &[proposal(3, 1, Command::CompareDigests)], &Machine::new());
        let Some(Command::DigestAt { index: told, digest }) = marks.to_tell() else {
            panic!("nothing to tell")
        };
        assert_eq!((told, marks.to_tell()), (index, None), "it is told once");
        digest
    }

    fn says(marks: &Marks, (node, incarnation): (u64, u64), index: u64, digest: u64) {
        let command = Command::DigestAt { index, digest };
        marks.applied(index + 1, &[proposal(node, incarnation, command)], &Machine::new());
    }

    #[test]
    fn a_node_stops_when_a_majority_of_the_others_agrees_on_another_digest() {
        let (marks, mine) = marked(5);
        says(&marks, (2, 1), 5, mine ^ 1);
        assert_eq!(marks.judge(&voters(3)), None, "node 3 may agree with this one");
        says(&marks, (3, 1), 5, mine ^ 1);
        let found = marks.judge(&voters(3)).expect("it differs");
        assert_eq!(found.majority, Some(mine ^ 1));
        let words = found.to_string();
        assert!(words.contains("node 2 and 3") && words.contains("operations.md"), "{words}");
        if mutant::AVAILABLE {
            let _mistake = mutant::with(Some(Mutant::DigestsNotJudged));
            assert_eq!(marks.judge(&voters(3)), None, "the mistake would be seen here");
        }
    }

    #[test]
    fn a_node_that_a_majority_agrees_with_goes_on_whoever_differs() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 7), 5, mine);
        says(&marks, (2, 1), 5, mine);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert_eq!(marks.judge(&voters(3)), None);
        says(&marks, (4, 1), 5, mine ^ 1);
        says(&marks, (5, 1), 5, mine ^ 1);
        assert_eq!(marks.judge(&voters(3)), None, "learners have no say");
    }

    #[test]
    fn a_learner_that_differs_from_the_voters_stops() {
        let (marks, mine) = marked(5);
        let others: BTreeSet<NodeId> = (2..=4).map(NodeId).collect();
        says(&marks, (2, 1), 5, mine ^ 1);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert!(marks.judge(&others).is_some());
    }

    #[test]
    fn nodes_stop_when_none_can_have_a_majority_any_more() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 7), 5, mine);
        says(&marks, (2, 1), 5, mine ^ 1);
        assert_eq!(marks.judge(&voters(2)).map(|found| found.majority), Some(None));
        says(&marks, (3, 1), 5, mine ^ 2);
        assert!(marks.judge(&voters(3)).is_some());
    }

    #[test]
    fn a_majority_that_may_still_come_is_waited_for_and_not_for_ever() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 7), 5, mine);
        says(&marks, (2, 1), 5, mine ^ 1);
        for more in 1..=MARKS_MAX as u64 {
            assert_eq!(marks.judge(&voters(3)), None);
            mark(&marks, 5 + 10 * more);
        }
        assert_eq!(marks.judge(&voters(3)).map(|found| found.index), Some(5));
    }

    /// Its own word of that time may be wrong, and that no node could tell then is no reason now.
    #[test]
    fn a_node_that_starts_again_is_stopped_by_the_log_only_if_a_majority_says_so() {
        let (marks, mine) = marked(5);
        says(&marks, (1, 6), 5, mine ^ 1);
        says(&marks, (2, 1), 5, mine ^ 1);
        for more in 1..=MARKS_MAX as u64 {
            mark(&marks, 5 + 10 * more);
        }
        assert_eq!(marks.judge(&voters(3)), None);
        assert_eq!(marks.judge(&voters(2)), None);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert!(marks.judge(&voters(3)).is_some());
    }

    #[test]
    fn what_was_noted_before_a_snapshot_says_nothing_about_the_state_behind_it() {
        let (marks, mine) = marked(5);
        marks.installed();
        says(&marks, (2, 1), 5, mine ^ 1);
        says(&marks, (3, 1), 5, mine ^ 1);
        assert_eq!(marks.judge(&voters(3)), None);
    }
}
