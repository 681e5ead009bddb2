//! Lazy flushes: a follower that no quorum waits for flushes later, and several entries at once.
//!
//! A commit waits only for the quickest quorum. A leader allows the other followers to flush lazily: they
//! take entries and apply commits like every node, but flush only every `pacing::LAZY_FLUSH_DELAY_MAX`, and
//! answer then. Where nodes share a disk, fewer flushes disturb the nodes that a commit waits for. An answer
//! still says that the entry is on disk. The idea is that of thrifty Paxos (Moraru et al., "There Is More
//! Consensus in Egalitarian Parliaments", 2013, section 6), which does not even ask the others.
//!
//! The quickest followers, those that answered first, are not lazy. A quorum may need a lazy follower after
//! all, because a quick follower or the leader's own disk is slow. Then all flush at once for a while (an
//! eager period), and the quickest are found again. The period is short, since on a busy machine any of them
//! may just not have had the processor. It grows when that did not help.
//!
//! The log, the replication pipelines and the listener tell it what happens and ask who is lazy. It decides
//! only when entries are flushed, never what an answer means, since its knowledge may be out of date. (Also
//! the last message of a deposed leader can make a few entries wait for `LAZY_FLUSH_DELAY_MAX`.)

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::metrics::RaftServerMetrics;
use parking_lot::Mutex;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_types::pacing::LAZY_FLUSH_DELAY_MAX;

use crate::config::SpareFlushes;
use crate::raft_types::TypeConfig;

/// A time in which no follower is lazy, because a lazy one was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EagerPeriod {
    since: Instant,
    length: Duration,
}

impl EagerPeriod {
    /// Enough to see who is quick: ten flushes of a disk that takes 5 ms for each.
    const SHORTEST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);

    /// The period that begins now. It is twice as long as the last one, unless the pause between them was as
    /// long as the last one.
    fn after(last: Option<EagerPeriod>, now: Instant) -> EagerPeriod {
        let length = match last {
            Some(last) if now < last.since + last.length * 2 => (last.length * 2).min(Self::LONGEST),
            _ => Self::SHORTEST,
        };
        assert!(length >= Self::SHORTEST, "a period is long enough to see who is quick");
        assert!(length <= Self::LONGEST, "a period ends soon");
        EagerPeriod { since: now, length }
    }

    fn lasts(&self, now: Instant) -> bool {
        now < self.since + self.length
    }
}

/// The other members, as a leader needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followers {
    /// The members with a vote.
    voters: BTreeSet<u64>,
    /// How many of them make a quorum, with the leader.
    needed: usize,
    /// Voters and learners that may be lazy.
    lazy_allowed: BTreeSet<u64>,
}

impl Followers {
    pub fn of(metrics: &RaftServerMetrics<TypeConfig>, spare: SpareFlushes) -> Followers {
        let membership = metrics.membership_config.membership();
        let mut voters: BTreeSet<u64> = membership.voter_ids().collect();
        let quorum = voters.len() / 2 + 1;
        let is_voter = voters.remove(&metrics.id);
        // While the voters change, a quorum is one of the old and one of the new.
        let is_stable = membership.get_joint_config().len() == 1;
        let needed = if is_stable { quorum - usize::from(is_voter) } else { voters.len() };
        assert!(voters.is_empty() || needed <= voters.len(), "a quorum is not more than all");
        let host = membership.get_node(&metrics.id).map(|member| member.host().to_owned());
        let others = membership.nodes().filter(|(node, _)| **node != metrics.id);
        let lazy_allowed = others.filter(|(_, member)| match spare {
            SpareFlushes::Always => true,
            SpareFlushes::SameMachine => host.as_deref() == Some(member.host()),
            SpareFlushes::Never => false,
        });
        let lazy_allowed = lazy_allowed.map(|(node, _)| *node).collect();
        Followers { voters, needed, lazy_allowed }
    }
}

#[cfg(test)]
impl Followers {
    /// Tracks these voters, of which `needed` must flush; all may be lazy.
    pub fn all_lazy_allowed(voters: &[u64], needed: usize) -> Followers {
        let voters: BTreeSet<u64> = voters.iter().copied().collect();
        Followers { lazy_allowed: voters.clone(), voters, needed }
    }
}

/// One per node; clones share its state.
#[derive(Clone, Default)]
pub struct LazyFlush {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    followers: Followers,
    /// How far a leader knows the log to be committed.
    committed: u64,
    /// The voters that are not lazy. With fewer than the quorum needs, no follower is lazy.
    quickest: BTreeSet<u64>,
    eager: Option<EagerPeriod>,
    /// On a follower: the leader waits for no flush up to this entry.
    lazy_to: u64,
}

impl LazyFlush {
    /// The members are these now; none is known before.
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
    pub fn allow_lazy_to(&self, index: u64) {
        self.state.lock().lazy_to = index;
    }

    /// Whether the leader waits for no flush of this entry.
    pub fn is_lazy(&self, index: u64) -> bool {
        index <= self.state.lock().lazy_to
    }

    /// A follower to which a stream of entries begins.
    pub fn follower(&self, node: u64) -> Follower {
        Follower { lazy_flush: self.clone(), node }
    }
}

/// One follower, as the stream to it knows it. Dropping it says that the stream has ended.
pub struct Follower {
    lazy_flush: LazyFlush,
    node: u64,
}

impl Follower {
    /// Whether a quorum probably does without it.
    pub fn is_lazy(&self) -> bool {
        let state = self.lazy_flush.state.lock();
        state.quickest.len() >= state.followers.needed
            && state.followers.lazy_allowed.contains(&self.node)
            && !state.quickest.contains(&self.node)
    }

    /// It has flushed entries up to `index`, so long after they were sent.
    pub fn has_flushed(&self, index: u64, was_lazy: bool, took: Duration) {
        let now = time::now();
        let mut state = self.lazy_flush.state.lock();
        if state.eager.is_some_and(|eager| eager.lasts(now)) {
            return;
        }
        if was_lazy {
            // The last entries before its flush may be too new to be committed; those before them are not.
            if took >= LAZY_FLUSH_DELAY_MAX / 2 && index > state.committed {
                rare::taken(Rare::LazyWasNeeded);
                state.quickest.clear();
                state.eager = Some(EagerPeriod::after(state.eager, now));
            }
        } else if state.quickest.len() < state.followers.needed && state.followers.voters.contains(&self.node)
        {
            state.quickest.insert(self.node);
            assert!(state.quickest.len() <= state.followers.needed, "no more are quickest than are needed");
            assert!(state.quickest.is_subset(&state.followers.voters), "only voters make a quorum");
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.lazy_flush.state.lock().quickest.remove(&self.node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(voters: &[u64], needed: usize, lazy_allowed: &[u64]) -> LazyFlush {
        let lazy_flush = LazyFlush::default();
        let (voters, lazy_allowed) =
            (voters.iter().copied().collect(), lazy_allowed.iter().copied().collect());
        lazy_flush.lead(Followers { voters, needed, lazy_allowed });
        lazy_flush
    }

    #[test]
    fn the_first_to_answer_are_needed_and_the_others_are_lazy() {
        let lazy_flush = led(&[2, 3, 4, 5], 2, &[2, 3, 4, 5, 6]);
        let [two, three, four, five, learner] = [2, 3, 4, 5, 6].map(|node| lazy_flush.follower(node));
        assert!(!two.is_lazy() && !learner.is_lazy(), "none is known to be quick");
        learner.has_flushed(1, false, Duration::ZERO);
        four.has_flushed(1, false, Duration::ZERO);
        assert!(!two.is_lazy(), "a learner is no part of a quorum");
        two.has_flushed(1, false, Duration::ZERO);
        three.has_flushed(1, false, Duration::ZERO);
        assert!(!two.is_lazy() && !four.is_lazy());
        assert!(three.is_lazy() && five.is_lazy() && learner.is_lazy());
    }

    #[test]
    fn only_followers_that_may_be_lazy_are() {
        let lazy_flush = led(&[2, 3], 1, &[]);
        let (two, three) = (lazy_flush.follower(2), lazy_flush.follower(3));
        two.has_flushed(1, false, Duration::ZERO);
        assert!(!three.is_lazy());
    }

    #[test]
    fn no_follower_is_lazy_when_one_of_the_quickest_is_lost_or_the_members_change() {
        let lazy_flush = led(&[2, 3], 1, &[2, 3]);
        let (two, three) = (lazy_flush.follower(2), lazy_flush.follower(3));
        two.has_flushed(1, false, Duration::ZERO);
        assert!(three.is_lazy());
        drop(two);
        assert!(!three.is_lazy());
        three.has_flushed(2, false, Duration::ZERO);
        let two = lazy_flush.follower(2);
        assert!(two.is_lazy());
        lazy_flush.lead(Followers { voters: [2, 3, 4].into(), needed: 2, lazy_allowed: [2, 3, 4].into() });
        assert!(!two.is_lazy());
    }

    #[test]
    fn all_flush_at_once_when_a_lazy_follower_was_needed() {
        let lazy_flush = led(&[2, 3], 1, &[2, 3]);
        let (two, three) = (lazy_flush.follower(2), lazy_flush.follower(3));
        two.has_flushed(1, false, Duration::ZERO);
        lazy_flush.committed(1);
        three.has_flushed(1, true, LAZY_FLUSH_DELAY_MAX);
        assert!(three.is_lazy(), "it was not needed");
        three.has_flushed(2, true, Duration::ZERO);
        assert!(three.is_lazy(), "the entry is too new to say");
        three.has_flushed(2, true, LAZY_FLUSH_DELAY_MAX);
        assert!(!three.is_lazy() && !two.is_lazy());
        two.has_flushed(3, false, Duration::ZERO);
        assert!(!three.is_lazy(), "not for a while");
    }

    #[test]
    fn an_eager_period_that_did_not_help_is_followed_by_a_longer_one() {
        let (start, ms) = (time::now(), Duration::from_millis);
        let first = EagerPeriod::after(None, start);
        assert!(first.lasts(start + ms(49)) && !first.lasts(start + ms(50)));
        let mut eager = first;
        for length in [100, 200, 400, 800, 1000, 1000].map(ms) {
            eager = EagerPeriod::after(Some(eager), eager.since + eager.length);
            assert_eq!(eager.length, length);
        }
        assert_eq!(EagerPeriod::after(Some(eager), eager.since + ms(1_999)).length, ms(1000));
        assert_eq!(EagerPeriod::after(Some(eager), eager.since + ms(2_000)).length, ms(50), "it was quiet");
    }

    #[test]
    fn a_node_knows_up_to_where_it_may_flush_lazily() {
        let lazy_flush = LazyFlush::default();
        assert!(!lazy_flush.is_lazy(1));
        lazy_flush.allow_lazy_to(7);
        assert!(lazy_flush.is_lazy(7) && !lazy_flush.is_lazy(8));
        lazy_flush.allow_lazy_to(0);
        assert!(!lazy_flush.is_lazy(7));
    }
}
