//! Times of answers and of silence per member, and the resulting changes of voters. Pure: reads no clock.
//!
//! Invariant: no step lets the cluster tolerate fewer failures than before. A promoted learner has the log
//! and answers. A removed voter is the only unhealthy voter, and at least `min_voters` remain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_env::decides;
use rowlock_proto::NodeId;

/// Minimum healthy time of all other voters when a dead voter is removed: a voter that has answered just once
/// may be silent again.
const STEADY: Duration = Duration::from_secs(2);

/// Changes that the leader may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// Healthy time after which a learner becomes a voter.
    pub(super) promote_after: Option<Duration>,
    /// Silent time after which a voter is removed.
    pub(super) remove_dead_after: Option<Duration>,
    /// Minimum number of remaining voters.
    pub(super) min_voters: usize,
}

/// A member, as the leader sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberView {
    pub(super) node: NodeId,
    pub(super) votes: bool,
    /// The member has acknowledged an append lately. The leader itself always answers.
    pub(super) answers: bool,
    /// Log index up to which the member has stored the log.
    pub(super) stored: u64,
}

/// A member's history in this term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberHealth {
    pub(super) votes: bool,
    /// Time for which the member has answered and had the log without a gap. Zero: not healthy.
    pub(super) healthy_for: Duration,
    /// Time without an answer. Zero: the member answers.
    pub(super) silent_for: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberChange {
    Promote(NodeId),
    Remove(NodeId),
}

/// A leader's observations in its term.
#[derive(Debug, Default)]
pub(super) struct Watch {
    term: u64,
    /// End of the log at the previous scan.
    log_end: u64,
    healths: BTreeMap<NodeId, MemberHealth>,
}

impl Watch {
    /// Records the view of the leader of `term`, `elapsed` after the previous scan. The caller bounds
    /// `elapsed`: a leader without scans cannot claim a member's silence. A later term starts at zero.
    pub(super) fn record(
        &mut self,
        term: u64,
        elapsed: Duration,
        log_end: u64,
        seen: &[MemberView],
    ) -> &BTreeMap<NodeId, MemberHealth> {
        if self.term != term {
            *self = Watch { term, log_end, ..Watch::default() };
        }
        // The log grows while a member stores entries: the member must have the end of the previous scan.
        let needed = self.log_end;
        self.log_end = log_end;
        let before = std::mem::take(&mut self.healths);
        let health = |seen: &MemberView| {
            let MemberHealth { healthy_for, silent_for, .. } =
                before.get(&seen.node).copied().unwrap_or_default();
            let is_healthy = decides!("member-is-healthy", seen.answers && seen.stored >= needed);
            let longer =
                |time: Duration, goes_on: bool| if goes_on { time + elapsed } else { Duration::ZERO };
            let (healthy_for, silent_for) =
                (longer(healthy_for, is_healthy), longer(silent_for, !seen.answers));
            assert!(healthy_for.is_zero() || silent_for.is_zero(), "a silent member is not healthy");
            (seen.node, MemberHealth { votes: seen.votes, healthy_for, silent_for })
        };
        self.healths = seen.iter().map(health).collect();
        &self.healths
    }
}

/// Returns the next due step. Promotions come first: an additional voter may permit the removal of a dead
/// voter.
pub(super) fn decide(members: &BTreeMap<NodeId, MemberHealth>, rules: Rules) -> Option<MemberChange> {
    promotion(members, rules).or_else(|| removal(members, rules))
}

fn voters(members: &BTreeMap<NodeId, MemberHealth>) -> impl Iterator<Item = (NodeId, &MemberHealth)> {
    members.iter().filter(|(_, health)| health.votes).map(|(node, health)| (*node, health))
}

fn is_dead(health: &MemberHealth, rules: Rules) -> bool {
    rules.remove_dead_after.is_some_and(|after| decides!("member-is-dead", health.silent_for >= after))
}

/// Returns the learner to promote. A voter with a short outage may not know yet the new folder of a wiped
/// learner (`readmit.rs`), and would refuse that node for ever after an early promotion. So all voters must
/// answer, except those due for removal.
fn promotion(members: &BTreeMap<NodeId, MemberHealth>, rules: Rules) -> Option<MemberChange> {
    let after = rules.promote_after?;
    if !voters(members).all(|(_, health)| health.silent_for.is_zero() || is_dead(health, rules)) {
        return None;
    }
    let ready = members
        .iter()
        .filter(|(_, health)| decides!("learner-is-ready", !health.votes && health.healthy_for >= after));
    let longest = ready.max_by_key(|(node, health)| (health.healthy_for, std::cmp::Reverse(**node)));
    longest.map(|(node, _)| MemberChange::Promote(*node))
}

fn removal(members: &BTreeMap<NodeId, MemberHealth>, rules: Rules) -> Option<MemberChange> {
    let dead: BTreeSet<NodeId> =
        voters(members).filter(|(_, health)| is_dead(health, rules)).map(|(node, _)| node).collect();
    let healthy = voters(members).filter(|(_, health)| health.healthy_for >= STEADY).count();
    let left = voters(members).count().checked_sub(1)?;
    // All remaining voters are healthy: there is exactly one dead voter and no other weak one.
    (decides!("removal-is-safe", healthy == left && left >= rules.min_voters))
        .then(|| dead.first().copied().map(MemberChange::Remove))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const RULES: Rules = Rules {
        promote_after: Some(Duration::from_secs(10)),
        remove_dead_after: Some(Duration::from_secs(60)),
        min_voters: 3,
    };

    fn healthy(votes: bool, seconds: u32) -> MemberHealth {
        MemberHealth { votes, healthy_for: SECOND * seconds, ..MemberHealth::default() }
    }

    fn silent(votes: bool, seconds: u32) -> MemberHealth {
        MemberHealth { votes, silent_for: SECOND * seconds, ..MemberHealth::default() }
    }

    fn members(healths: &[MemberHealth]) -> BTreeMap<NodeId, MemberHealth> {
        (1..).map(NodeId).zip(healths.iter().copied()).collect()
    }

    fn next(healths: &[MemberHealth]) -> Option<MemberChange> {
        decide(&members(healths), RULES)
    }

    /// Returns how many failures of healthy voters leave a quorum. Below zero: there is no quorum now.
    fn tolerates(members: &BTreeMap<NodeId, MemberHealth>) -> isize {
        let up = voters(members).filter(|(_, health)| !health.healthy_for.is_zero()).count();
        up.cast_signed() - (voters(members).count() / 2 + 1).cast_signed()
    }

    #[test]
    fn a_learner_healthy_for_long_enough_becomes_a_voter() {
        let voter = healthy(true, 99);
        assert_eq!(next(&[voter, voter, voter, healthy(false, 9)]), None);
        assert_eq!(next(&[voter, voter, voter, healthy(false, 10)]), Some(MemberChange::Promote(NodeId(4))));
        let both = [voter, healthy(false, 11), healthy(false, 12)];
        assert_eq!(
            next(&both),
            Some(MemberChange::Promote(NodeId(3))),
            "the one that has been so for longest"
        );
        assert_eq!(next(&[voter, silent(true, 1), voter, healthy(false, 10)]), None, "a voter is down");
        let off = Rules { promote_after: None, ..RULES };
        assert_eq!(decide(&members(&both), off), None);
    }

    #[test]
    fn a_dead_voter_is_removed_when_enough_healthy_ones_are_left() {
        let voter = healthy(true, 99);
        let dead = Some(MemberChange::Remove(NodeId(2)));
        assert_eq!(next(&[voter, silent(true, 60), voter, voter]), dead);
        assert_eq!(next(&[voter, silent(true, 59), voter, voter]), None, "it may come back");
        assert_eq!(next(&[voter, silent(true, 60), voter]), None, "two voters would be left");
        assert_eq!(next(&[voter, silent(true, 60), voter, voter, silent(true, 1)]), None);
        assert_eq!(next(&[voter, silent(true, 60), voter, voter, silent(true, 60)]), None, "two are dead");
        assert_eq!(next(&[voter, silent(true, 60), voter, voter, healthy(true, 1)]), None, "just come back");
        assert_eq!(next(&[voter, silent(false, 60), voter, voter]), None, "a learner may be dead");
        let off = Rules { remove_dead_after: None, ..RULES };
        assert_eq!(decide(&members(&[voter, silent(true, 60), voter, voter]), off), None);
    }

    #[test]
    fn a_new_node_takes_the_place_of_a_dead_one_of_three() {
        let voter = healthy(true, 99);
        let mut all = members(&[voter, silent(true, 60), voter, healthy(false, 10)]);
        assert_eq!(decide(&all, RULES), Some(MemberChange::Promote(NodeId(4))));
        all.insert(NodeId(4), healthy(true, 10));
        assert_eq!(decide(&all, RULES), Some(MemberChange::Remove(NodeId(2))));
        all.remove(&NodeId(2));
        assert_eq!((decide(&all, RULES), tolerates(&all)), (None, 1));
    }

    #[test]
    fn no_step_in_a_small_cluster_costs_a_tolerated_failure() {
        let kinds = |votes| [healthy(votes, 99), healthy(votes, 1), silent(votes, 9), silent(votes, 99)];
        let kinds: Vec<MemberHealth> = [true, false].into_iter().flat_map(kinds).collect();
        let mut taken = 0;
        for size in 1..=5 {
            for case in 0..kinds.len().pow(size) {
                let kind = |place: u32| kinds[case / kinds.len().pow(place) % kinds.len()];
                let mut all = members(&(0..size).map(kind).collect::<Vec<_>>());
                let mut steps = 0;
                while let Some(step) = decide(&all, RULES) {
                    let before = (tolerates(&all), voters(&all).count());
                    match step {
                        MemberChange::Promote(node) => {
                            let health = all.get_mut(&node).expect("is a member");
                            assert!(!health.votes && health.healthy_for >= 10 * SECOND, "{case}");
                            health.votes = true;
                        }
                        MemberChange::Remove(node) => {
                            let gone = all.remove(&node).expect("is a member");
                            assert!(gone.votes && gone.silent_for >= 60 * SECOND, "{case}");
                            assert!(
                                voters(&all).count() >= 3
                                    && voters(&all).all(|(_, it)| it.silent_for.is_zero())
                            );
                        }
                    }
                    assert!(tolerates(&all) >= before.0, "{case}: {step:?} of {} voters", before.1);
                    steps += 1;
                    assert!(steps <= 2 * size, "{case} does not end");
                }
                taken += steps;
            }
        }
        assert!(taken > 1_000, "{taken} steps");
    }

    #[test]
    fn times_add_up_without_gaps_and_restart_with_a_term() {
        let seen = |answers, stored| MemberView { node: NodeId(2), votes: false, answers, stored };
        let mut watch = Watch::default();
        let health =
            |watch: &mut Watch, term, end, seen| watch.record(term, SECOND, end, &[seen])[&NodeId(2)];
        assert_eq!(health(&mut watch, 1, 10, seen(true, 10)), healthy(false, 1));
        assert_eq!(health(&mut watch, 1, 20, seen(true, 10)), healthy(false, 2), "it has what was there");
        assert_eq!(health(&mut watch, 1, 30, seen(true, 19)), healthy(false, 0), "it is behind");
        assert_eq!(health(&mut watch, 1, 30, seen(true, 30)), healthy(false, 1));
        assert_eq!(health(&mut watch, 1, 30, seen(false, 30)), silent(false, 1));
        assert_eq!(health(&mut watch, 1, 30, seen(false, 30)), silent(false, 2));
        assert_eq!(health(&mut watch, 2, 30, seen(false, 30)), silent(false, 1), "another leader");
        assert_eq!(health(&mut watch, 2, 30, seen(true, 30)), healthy(false, 1));
        assert!(watch.record(2, SECOND, 30, &[]).is_empty(), "it is no member any more");
        assert_eq!(health(&mut watch, 2, 30, seen(true, 30)), healthy(false, 1));
    }
}
