//! For how long each member has answered or been silent, and which voters follow from that. Pure: it reads no
//! clock.
//!
//! Invariant: no step lets the cluster tolerate fewer failures than before. A learner that becomes a voter
//! has the log and answers. A voter that is removed is the only one that is not healthy, and at least
//! `min_voters` are left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_proto::NodeId;

/// The others must have been healthy for so long when a dead voter is removed: one that has answered just
/// once may be silent again.
const STEADY: Duration = Duration::from_secs(2);

/// Changes that the leader may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// A learner that has been healthy for so long becomes a voter.
    pub(super) promote_after: Option<Duration>,
    /// A voter that has been silent for so long is removed.
    pub(super) remove_dead_after: Option<Duration>,
    /// At least this many voters are left.
    pub(super) min_voters: usize,
}

/// One member, as the leader sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberView {
    pub(super) node: NodeId,
    pub(super) votes: bool,
    /// It has acknowledged something lately. The leader itself answers.
    pub(super) answers: bool,
    /// Up to where it has stored the log.
    pub(super) stored: u64,
}

/// How a member has been so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stand {
    pub(super) votes: bool,
    /// For so long it has answered and had the log without a gap. Zero: it is not healthy.
    pub(super) healthy_for: Duration,
    /// For so long it has not answered. Zero: it answers.
    pub(super) silent_for: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberChange {
    /// This learner becomes a voter.
    Promote(NodeId),
    /// This voter leaves the members.
    Remove(NodeId),
}

/// Observations of one leader in its term.
#[derive(Debug, Default)]
pub(super) struct Watch {
    term: u64,
    /// End of the log at the last look.
    log_end: u64,
    stands: BTreeMap<NodeId, Stand>,
}

impl Watch {
    /// Takes note of what the leader of `term` sees, `elapsed` after its last look. The caller bounds that: a
    /// leader that did not look cannot say that no member answered. A later term begins again.
    pub(super) fn note(
        &mut self,
        term: u64,
        elapsed: Duration,
        log_end: u64,
        seen: &[MemberView],
    ) -> &BTreeMap<NodeId, Stand> {
        if self.term != term {
            *self = Watch { term, log_end, ..Watch::default() };
        }
        // The end moves on while a member stores it: what was there at the last look is asked for.
        let needed = self.log_end;
        self.log_end = log_end;
        let before = std::mem::take(&mut self.stands);
        let stand = |seen: &MemberView| {
            let Stand { healthy_for, silent_for, .. } = before.get(&seen.node).copied().unwrap_or_default();
            let is_healthy = seen.answers && seen.stored >= needed;
            let longer =
                |time: Duration, goes_on: bool| if goes_on { time + elapsed } else { Duration::ZERO };
            let (healthy_for, silent_for) =
                (longer(healthy_for, is_healthy), longer(silent_for, !seen.answers));
            assert!(healthy_for.is_zero() || silent_for.is_zero(), "who is silent is not healthy");
            (seen.node, Stand { votes: seen.votes, healthy_for, silent_for })
        };
        self.stands = seen.iter().map(stand).collect();
        &self.stands
    }
}

/// The next step, if one is due. Promotions come first: with one more voter there may be enough of them to
/// remove a dead one.
pub(super) fn decide(members: &BTreeMap<NodeId, Stand>, rules: Rules) -> Option<MemberChange> {
    promotion(members, rules).or_else(|| removal(members, rules))
}

fn voters(members: &BTreeMap<NodeId, Stand>) -> impl Iterator<Item = (NodeId, &Stand)> {
    members.iter().filter(|(_, stand)| stand.votes).map(|(node, stand)| (*node, stand))
}

fn is_dead(stand: &Stand, rules: Rules) -> bool {
    rules.remove_dead_after.is_some_and(|after| stand.silent_for >= after)
}

/// A voter that is down for a short time may not know yet the folder of a learner that lost its data
/// (`readmit.rs`), and would refuse it for ever if it became a voter meanwhile. So all voters must answer,
/// but those that are as good as removed.
fn promotion(members: &BTreeMap<NodeId, Stand>, rules: Rules) -> Option<MemberChange> {
    let after = rules.promote_after?;
    if !voters(members).all(|(_, stand)| stand.silent_for.is_zero() || is_dead(stand, rules)) {
        return None;
    }
    let ready = members.iter().filter(|(_, stand)| !stand.votes && stand.healthy_for >= after);
    let longest = ready.max_by_key(|(node, stand)| (stand.healthy_for, std::cmp::Reverse(**node)));
    longest.map(|(node, _)| MemberChange::Promote(*node))
}

fn removal(members: &BTreeMap<NodeId, Stand>, rules: Rules) -> Option<MemberChange> {
    let dead: BTreeSet<NodeId> =
        voters(members).filter(|(_, stand)| is_dead(stand, rules)).map(|(node, _)| node).collect();
    let healthy = voters(members).filter(|(_, stand)| stand.healthy_for >= STEADY).count();
    let left = voters(members).count().checked_sub(1)?;
    // All that are left are healthy: so there is one dead voter and no other that is weak.
    (healthy == left && left >= rules.min_voters)
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

    fn healthy(votes: bool, seconds: u32) -> Stand {
        Stand { votes, healthy_for: SECOND * seconds, ..Stand::default() }
    }

    fn silent(votes: bool, seconds: u32) -> Stand {
        Stand { votes, silent_for: SECOND * seconds, ..Stand::default() }
    }

    fn members(stands: &[Stand]) -> BTreeMap<NodeId, Stand> {
        (1..).map(NodeId).zip(stands.iter().copied()).collect()
    }

    fn next(stands: &[Stand]) -> Option<MemberChange> {
        decide(&members(stands), RULES)
    }

    /// More failures of healthy voters than this, and there is no quorum. Below zero: there is none now.
    fn tolerates(members: &BTreeMap<NodeId, Stand>) -> isize {
        let up = voters(members).filter(|(_, stand)| !stand.healthy_for.is_zero()).count();
        up.cast_signed() - (voters(members).count() / 2 + 1).cast_signed()
    }

    #[test]
    fn a_learner_that_has_been_healthy_for_long_enough_becomes_a_voter() {
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
    fn no_step_in_any_small_cluster_costs_a_tolerated_failure_and_steps_end() {
        let kinds = |votes| [healthy(votes, 99), healthy(votes, 1), silent(votes, 9), silent(votes, 99)];
        let kinds: Vec<Stand> = [true, false].into_iter().flat_map(kinds).collect();
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
                            let stand = all.get_mut(&node).expect("is a member");
                            assert!(!stand.votes && stand.healthy_for >= 10 * SECOND, "{case}");
                            stand.votes = true;
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
    fn times_add_up_without_gaps_and_begin_anew_with_a_term() {
        let seen = |answers, stored| MemberView { node: NodeId(2), votes: false, answers, stored };
        let mut watch = Watch::default();
        let stand = |watch: &mut Watch, term, end, seen| watch.note(term, SECOND, end, &[seen])[&NodeId(2)];
        assert_eq!(stand(&mut watch, 1, 10, seen(true, 10)), healthy(false, 1));
        assert_eq!(stand(&mut watch, 1, 20, seen(true, 10)), healthy(false, 2), "it has what was there");
        assert_eq!(stand(&mut watch, 1, 30, seen(true, 19)), healthy(false, 0), "it is behind");
        assert_eq!(stand(&mut watch, 1, 30, seen(true, 30)), healthy(false, 1));
        assert_eq!(stand(&mut watch, 1, 30, seen(false, 30)), silent(false, 1));
        assert_eq!(stand(&mut watch, 1, 30, seen(false, 30)), silent(false, 2));
        assert_eq!(stand(&mut watch, 2, 30, seen(false, 30)), silent(false, 1), "another leader");
        assert_eq!(stand(&mut watch, 2, 30, seen(true, 30)), healthy(false, 1));
        assert!(watch.note(2, SECOND, 30, &[]).is_empty(), "it is no member any more");
        assert_eq!(stand(&mut watch, 2, 30, seen(true, 30)), healthy(false, 1));
    }
}
