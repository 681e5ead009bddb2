//! Number of elections won by a node, by the end of the previous leadership.

use parking_lot::Mutex;
use rowlock_proto::NodeId;

/// The end of the previous leadership, as seen by the winner of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderEnd {
    /// The node knew no leader since the start.
    Start,
    /// The leader asked this node to take over.
    HandedOver,
    /// The leader's connection to this node ended: its process died, or stopped without a handover.
    Disconnected,
    /// The leader was silent for a whole election timeout.
    Silent,
    /// This node led, and lost contact with the quorum.
    NoQuorum,
}

impl LeaderEnd {
    pub const ALL: [(LeaderEnd, &'static str); 5] = [
        (LeaderEnd::Start, "start"),
        (LeaderEnd::HandedOver, "handed-over"),
        (LeaderEnd::Disconnected, "disconnected"),
        (LeaderEnd::Silent, "silent"),
        (LeaderEnd::NoQuorum, "no-quorum"),
    ];
}

/// Counts the elections won by this node, by the end of the previous leadership.
#[derive(Debug, Default)]
pub struct Leaderships(Mutex<LeadershipCounts>);

#[derive(Debug, Default)]
struct LeadershipCounts {
    won: [u64; LeaderEnd::ALL.len()],
    /// The last known leader and its term.
    last: Option<(NodeId, u64)>,
    /// The presumed end of the leader of a term.
    noted: Option<(u64, LeaderEnd)>,
}

impl Leaderships {
    /// Records how the leader of `term` seems to end. A handover stays recorded: the old leader disconnects
    /// afterwards.
    pub fn ends(&self, term: u64, end: LeaderEnd) {
        let mut seen = self.0.lock();
        if seen.noted != Some((term, LeaderEnd::HandedOver)) {
            seen.noted = Some((term, end));
        }
    }

    /// Records that `leader` leads in `term`, as seen by node `me`.
    pub fn begins(&self, me: NodeId, leader: NodeId, term: u64) {
        let mut seen = self.0.lock();
        let end = match (seen.last, seen.noted) {
            (Some((_, last)), _) if last == term => return,
            (None, _) => LeaderEnd::Start,
            (Some((_, last)), Some((of, end))) if of == last => end,
            (Some((last, _)), _) if last == me => LeaderEnd::NoQuorum,
            (Some(_), _) => LeaderEnd::Silent,
        };
        seen.won[end as usize] += u64::from(leader == me);
        (seen.last, seen.noted) = (Some((leader, term)), None);
    }

    /// Returns the elections won by this node since its start after a leader fell silent.
    pub fn after_silence(&self) -> u64 {
        self.0.lock().won[LeaderEnd::Silent as usize]
    }

    /// Returns the counts with their labels.
    pub fn get(&self) -> [(&'static str, u64); LeaderEnd::ALL.len()] {
        let seen = self.0.lock();
        LeaderEnd::ALL.map(|(end, label)| (label, seen.won[end as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);

    fn won(seen: &Leaderships) -> Vec<(&'static str, u64)> {
        seen.get().into_iter().filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn an_election_counts_where_it_is_won_and_by_what_was_seen_of_the_leader_before() {
        let seen = Leaderships::default();
        seen.begins(ME, ME, 1);
        seen.begins(ME, ME, 1);
        assert_eq!(won(&seen), [("start", 1)], "once");
        seen.begins(ME, OTHER, 2);
        seen.ends(2, LeaderEnd::Disconnected);
        seen.begins(ME, ME, 4);
        seen.begins(ME, ME, 5);
        seen.begins(ME, OTHER, 6);
        seen.ends(6, LeaderEnd::HandedOver);
        seen.ends(6, LeaderEnd::Disconnected);
        seen.begins(ME, ME, 7);
        seen.begins(ME, OTHER, 8);
        seen.begins(ME, ME, 9);
        let each = [("start", 1), ("handed-over", 1), ("disconnected", 1), ("silent", 1), ("no-quorum", 1)];
        assert_eq!(won(&seen), each);
    }

    #[test]
    fn what_was_noted_of_an_older_leader_says_nothing_of_this_one() {
        let seen = Leaderships::default();
        seen.begins(ME, OTHER, 1);
        seen.ends(1, LeaderEnd::Disconnected);
        seen.begins(ME, OTHER, 2);
        seen.begins(ME, ME, 3);
        assert_eq!((won(&seen), seen.after_silence()), (vec![("silent", 1)], 1));
    }
}
