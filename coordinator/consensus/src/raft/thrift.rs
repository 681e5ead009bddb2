//! Thrift: followers that no quorum waits for flush a moment later, and several entries at once.
//!
//! A commit waits for the quickest quorum and no longer. A leader tells the other followers that they are
//! spared: they take entries and apply what is committed like everybody, but flush only every
//! `limits::WAL_PATIENCE`, and answer then. Where nodes share a disk, fewer flushes disturb those that a
//! commit waits for. No answer comes sooner than without: it still says that the entry is on disk. The idea
//! is that of thrifty Paxos (Moraru et al., "There Is More Consensus in Egalitarian Parliaments", 2013,
//! section 6), where the others are not even asked.
//!
//! The quickest are not spared: who answered first. When a spared follower turns out to have been needed,
//! because one of these or the leader's own disk is slow, all hurry for a while and the quickest are found
//! again. The while is short, since on a busy machine any of them may just not have had the processor, and
//! grows when that did not help.
//!
//! It stands between the log, the replication pipelines and the listener, which tell it what happens and ask
//! who is spared. It decides only when something is flushed, never what an answer means: what it believes may
//! be out of date (a deposed leader's last word, too, can make a few entries wait for `WAL_PATIENCE`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::metrics::RaftServerMetrics;
use parking_lot::Mutex;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_types::limits::WAL_PATIENCE;

use crate::config::SpareFlushes;
use crate::raft_types::TypeConfig;

/// A while in which nobody is spared, because a spared follower was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hurry {
    since: Instant,
    length: Duration,
}

impl Hurry {
    /// Enough to see who is quick: ten flushes of a disk that takes 5 ms for each.
    const SHORTEST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);

    /// The one that begins now. Unless it was quiet for as long as the last one took, it is twice as long.
    fn after(last: Option<Hurry>, now: Instant) -> Hurry {
        let length = match last {
            Some(last) if now < last.since + last.length * 2 => (last.length * 2).min(Self::LONGEST),
            _ => Self::SHORTEST,
        };
        Hurry { since: now, length }
    }

    fn lasts(&self, now: Instant) -> bool {
        now < self.since + self.length
    }
}

/// The other members, as a leader needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followers {
    /// Those with a vote.
    voters: BTreeSet<u64>,
    /// How many of them make a quorum, with the leader.
    needed: usize,
    /// Voters and learners that may be spared.
    spareable: BTreeSet<u64>,
}

impl Followers {
    /// Of the node whose metrics these are.
    pub fn of(metrics: &RaftServerMetrics<TypeConfig>, spare: SpareFlushes) -> Followers {
        let membership = metrics.membership_config.membership();
        let mut voters: BTreeSet<u64> = membership.voter_ids().collect();
        let quorum = voters.len() / 2 + 1;
        let is_voter = voters.remove(&metrics.id);
        // While the voters change, a quorum is one of the old and one of the new.
        let is_stable = membership.get_joint_config().len() == 1;
        let needed = if is_stable { quorum - usize::from(is_voter) } else { voters.len() };
        let host = membership.get_node(&metrics.id).map(|member| member.host().to_owned());
        let others = membership.nodes().filter(|(node, _)| **node != metrics.id);
        let spareable = others.filter(|(_, member)| match spare {
            SpareFlushes::Always => true,
            SpareFlushes::SameMachine => host.as_deref() == Some(member.host()),
            SpareFlushes::Never => false,
        });
        let spareable = spareable.map(|(node, _)| *node).collect();
        Followers { voters, needed, spareable }
    }
}

#[cfg(test)]
impl Followers {
    /// These voters, of which so many are needed; all may be spared.
    pub fn all_spareable(voters: &[u64], needed: usize) -> Followers {
        let voters: BTreeSet<u64> = voters.iter().copied().collect();
        Followers { spareable: voters.clone(), voters, needed }
    }
}

/// One per node; clones are the same.
#[derive(Clone, Default)]
pub struct Thrift {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    followers: Followers,
    /// How far a leader knows the log to be committed.
    committed: u64,
    /// The voters that a leader does not spare. With fewer than the quorum needs, it spares nobody.
    quickest: BTreeSet<u64>,
    /// When a leader last had reason to spare nobody.
    hurry: Option<Hurry>,
    /// A follower's leader waits for no flush up to this entry.
    spared_to: u64,
}

impl Thrift {
    /// The members are these now; nobody is known before.
    pub fn lead(&self, followers: Followers) {
        let mut state = self.state.lock();
        if state.followers != followers {
            state.quickest.clear();
            state.followers = followers;
        }
    }

    /// The log is committed so far.
    pub fn committed(&self, index: u64) {
        self.state.lock().committed = index;
    }

    /// The leader waits for no flush up to this entry. Zero: it waits for each.
    pub fn spare_to(&self, index: u64) {
        self.state.lock().spared_to = index;
    }

    /// Whether the leader waits for no flush of this entry.
    pub fn is_spared(&self, index: u64) -> bool {
        index <= self.state.lock().spared_to
    }

    /// The place of a follower to which a stream of entries begins.
    pub fn follower(&self, node: u64) -> Follower {
        Follower { thrift: self.clone(), node }
    }
}

/// One follower, as the stream to it knows it. Dropping it says that the stream has ended.
pub struct Follower {
    thrift: Thrift,
    node: u64,
}

impl Follower {
    /// Whether a quorum does without it, as it looks.
    pub fn is_spared(&self) -> bool {
        let state = self.thrift.state.lock();
        state.quickest.len() >= state.followers.needed
            && state.followers.spareable.contains(&self.node)
            && !state.quickest.contains(&self.node)
    }

    /// It has flushed entries up to `index`, so long after they were sent.
    pub fn has_flushed(&self, index: u64, was_spared: bool, took: Duration) {
        let now = time::now();
        let mut state = self.thrift.state.lock();
        if state.hurry.is_some_and(|hurry| hurry.lasts(now)) {
            return;
        }
        if was_spared {
            // The last entries before its flush may be too new to be committed; those before them are not.
            if took >= WAL_PATIENCE / 2 && index > state.committed {
                rare::taken(Rare::SparedWasNeeded);
                state.quickest.clear();
                state.hurry = Some(Hurry::after(state.hurry, now));
            }
        } else if state.quickest.len() < state.followers.needed && state.followers.voters.contains(&self.node)
        {
            state.quickest.insert(self.node);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.thrift.state.lock().quickest.remove(&self.node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(voters: &[u64], needed: usize, spareable: &[u64]) -> Thrift {
        let thrift = Thrift::default();
        let (voters, spareable) = (voters.iter().copied().collect(), spareable.iter().copied().collect());
        thrift.lead(Followers { voters, needed, spareable });
        thrift
    }

    #[test]
    fn whoever_answers_first_is_needed_and_the_others_are_spared() {
        let thrift = led(&[2, 3, 4, 5], 2, &[2, 3, 4, 5, 6]);
        let [two, three, four, five, learner] = [2, 3, 4, 5, 6].map(|node| thrift.follower(node));
        assert!(!two.is_spared() && !learner.is_spared(), "nobody is known to be quick");
        learner.has_flushed(1, false, Duration::ZERO);
        four.has_flushed(1, false, Duration::ZERO);
        assert!(!two.is_spared(), "a learner is no part of a quorum");
        two.has_flushed(1, false, Duration::ZERO);
        three.has_flushed(1, false, Duration::ZERO);
        assert!(!two.is_spared() && !four.is_spared());
        assert!(three.is_spared() && five.is_spared() && learner.is_spared());
    }

    #[test]
    fn only_those_that_may_be_are_spared() {
        let thrift = led(&[2, 3], 1, &[]);
        let (two, three) = (thrift.follower(2), thrift.follower(3));
        two.has_flushed(1, false, Duration::ZERO);
        assert!(!three.is_spared());
    }

    #[test]
    fn nobody_is_spared_when_one_of_the_quickest_is_lost_or_the_members_change() {
        let thrift = led(&[2, 3], 1, &[2, 3]);
        let (two, three) = (thrift.follower(2), thrift.follower(3));
        two.has_flushed(1, false, Duration::ZERO);
        assert!(three.is_spared());
        drop(two);
        assert!(!three.is_spared());
        three.has_flushed(2, false, Duration::ZERO);
        let two = thrift.follower(2);
        assert!(two.is_spared());
        thrift.lead(Followers { voters: [2, 3, 4].into(), needed: 2, spareable: [2, 3, 4].into() });
        assert!(!two.is_spared());
    }

    #[test]
    fn all_hurry_when_a_spared_follower_was_needed() {
        let thrift = led(&[2, 3], 1, &[2, 3]);
        let (two, three) = (thrift.follower(2), thrift.follower(3));
        two.has_flushed(1, false, Duration::ZERO);
        thrift.committed(1);
        three.has_flushed(1, true, WAL_PATIENCE);
        assert!(three.is_spared(), "it was not needed");
        three.has_flushed(2, true, Duration::ZERO);
        assert!(three.is_spared(), "the entry is too new to say");
        three.has_flushed(2, true, WAL_PATIENCE);
        assert!(!three.is_spared() && !two.is_spared());
        two.has_flushed(3, false, Duration::ZERO);
        assert!(!three.is_spared(), "not for a while");
    }

    #[test]
    fn a_hurry_that_did_not_help_is_followed_by_a_longer_one() {
        let (start, ms) = (time::now(), Duration::from_millis);
        let first = Hurry::after(None, start);
        assert!(first.lasts(start + ms(49)) && !first.lasts(start + ms(50)));
        let mut hurry = first;
        for length in [100, 200, 400, 800, 1000, 1000].map(ms) {
            hurry = Hurry::after(Some(hurry), hurry.since + hurry.length);
            assert_eq!(hurry.length, length);
        }
        assert_eq!(Hurry::after(Some(hurry), hurry.since + ms(1_999)).length, ms(1000));
        assert_eq!(Hurry::after(Some(hurry), hurry.since + ms(2_000)).length, ms(50), "it was quiet");
    }

    #[test]
    fn a_node_knows_up_to_where_it_is_spared() {
        let thrift = Thrift::default();
        assert!(!thrift.is_spared(1));
        thrift.spare_to(7);
        assert!(thrift.is_spared(7) && !thrift.is_spared(8));
        thrift.spare_to(0);
        assert!(!thrift.is_spared(7));
    }
}
