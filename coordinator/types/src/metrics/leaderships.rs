//! How often a node has become the leader, and what for.

use parking_lot::Mutex;
use rowlock_proto::NodeId;

/// The end of the previous leadership, as the winner of the election saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderEnd {
    /// The node had heard of no leader since its start.
    Start,
    /// The leader had asked this node to take over.
    HandedOver,
    /// The leader's connection to this node had ended: its process died, or was stopped in a hurry.
    Disconnected,
    /// The leader had said nothing for as long as an election waits.
    Silent,
    /// This node had led, and lost contact to its quorum.
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

/// Counts the elections that this node has won, by what had ended the leadership before.
#[derive(Debug, Default)]
pub struct Leaderships(Mutex<LeadershipCounts>);

#[derive(Debug, Default)]
struct LeadershipCounts {
    won: [u64; LeaderEnd::ALL.len()],
    /// The last leader that was known, and its term.
    last: Option<(NodeId, u64)>,
    /// Why the leader of a term is thought to have ended.
    noted: Option<(u64, LeaderEnd)>,
}

impl Leaderships {
    /// The leader of `term` seems to end, for this reason. One that hands over hangs up, too.
    pub fn ends(&self, term: u64, end: LeaderEnd) {
        let mut seen = self.0.lock();
        if seen.noted != Some((term, LeaderEnd::HandedOver)) {
            seen.noted = Some((term, end));
        }
    }

    /// `leader` leads in `term`, as node `me` hears.
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

    /// Elections that this node has won since its start after a leader had fallen silent.
    pub fn after_silence(&self) -> u64 {
        self.0.lock().won[LeaderEnd::Silent as usize]
    }

    /// The counts with their label.
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
