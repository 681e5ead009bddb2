//! no-deadlock: the log never comes to a state in which owners wait for each other in a circle, and
//! refuses a place only if waiting there would have closed one.
//!
//! Naively: who waits for whom is worked out anew from the whole queues, by what strict order means. A waiter waits for
//! everybody before it who could not hold beside it, and for everybody before whom one of those waits.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::FencingToken;
use rowlock_proto::lock::Mode;

use super::Invariant;
use crate::history::{Fact, Lock, Owner};

#[derive(Clone, Copy)]
struct Place {
    mode: Mode,
    owner: Option<Owner>,
    holds: bool,
}

/// All queues.
#[derive(Default)]
pub struct NoDeadlock {
    queues: BTreeMap<Lock, BTreeMap<FencingToken, Place>>,
    /// Somebody has come to a queue since it was looked for circles.
    changed: bool,
}

type Graph = BTreeMap<Owner, BTreeSet<Owner>>;

impl NoDeadlock {
    /// Owners of the places that the place at `at` waits for.
    fn waits_for(queue: &[Place], at: usize) -> BTreeSet<Owner> {
        let mut blockers = BTreeSet::new();
        let mut blocked = vec![at];
        while let Some(waiter) = blocked.pop() {
            for ahead in 0..waiter {
                // Of permits, one of many that come free may be enough.
                let go_together = matches!(
                    (queue[ahead].mode, queue[waiter].mode),
                    (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_))
                );
                if !go_together && blockers.insert(ahead) && !queue[ahead].holds {
                    blocked.push(ahead);
                }
            }
        }
        blockers.into_iter().filter_map(|ahead| queue[ahead].owner).collect()
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for queue in self.queues.values() {
            let queue: Vec<Place> = queue.values().copied().collect();
            for (at, place) in queue.iter().enumerate() {
                if let (Some(owner), false) = (place.owner, place.holds) {
                    graph.entry(owner).or_default().extend(Self::waits_for(&queue, at));
                }
            }
        }
        graph
    }

    fn is_in_circle(graph: &Graph, owner: Owner) -> bool {
        let mut reached = BTreeSet::new();
        let mut todo = vec![owner];
        while let Some(next) = todo.pop() {
            for other in graph.get(&next).into_iter().flatten() {
                if *other == owner {
                    return true;
                }
                if reached.insert(*other) {
                    todo.push(*other);
                }
            }
        }
        false
    }

    /// Whether `owner`, were it to wait for `lock`, would be in a circle.
    fn would_close(&self, owner: Owner, lock: Lock, mode: Mode) -> bool {
        let mut graph = self.graph();
        let mut queue: Vec<Place> =
            self.queues.get(&lock).into_iter().flat_map(BTreeMap::values).copied().collect();
        queue.push(Place { mode, owner: Some(owner), holds: false });
        graph.entry(owner).or_default().extend(Self::waits_for(&queue, queue.len() - 1));
        Self::is_in_circle(&graph, owner)
    }

    fn check_refusal(
        &self,
        lock: Lock,
        mode: Mode,
        owner: Option<Owner>,
        circle: &[(Lock, FencingToken)],
    ) -> Result<(), String> {
        let owner = owner.ok_or_else(|| format!("{lock:?} was refused to nobody in particular"))?;
        if !self.would_close(owner, lock, mode) {
            return Err(format!("{lock:?} was refused to {owner:?} without need: {circle:?} is no circle"));
        }
        let place = |(lock, token): &(Lock, FencingToken)| self.queues.get(lock)?.get(token);
        let last = circle.last().and_then(place).and_then(|place| place.owner);
        if circle.iter().any(|at| place(at).is_none()) || last != Some(owner) {
            return Err(format!(
                "{lock:?} was refused to {owner:?} with a circle that is not there: {circle:?}"
            ));
        }
        Ok(())
    }
}

impl Invariant for NoDeadlock {
    fn name(&self) -> &'static str {
        "no-deadlock"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Queued { lock, token, mode, owner, .. } => {
                let place = Place { mode: *mode, owner: *owner, holds: false };
                self.queues.entry(*lock).or_default().insert(*token, place);
                self.changed = true;
            }
            Fact::Entitled { lock, token, .. } => {
                if let Some(place) = self.queues.get_mut(lock).and_then(|queue| queue.get_mut(token)) {
                    place.holds = true;
                }
            }
            Fact::Converted { lock, token, mode } => {
                if let Some(place) = self.queues.get_mut(lock).and_then(|queue| queue.get_mut(token)) {
                    place.mode = *mode;
                }
            }
            Fact::Left { lock, token, .. } => {
                self.queues.entry(*lock).or_default().remove(token);
            }
            Fact::Refused { lock, mode, owner, circle, .. } => {
                self.check_refusal(*lock, *mode, *owner, circle)?;
            }
            // Nobody comes to wait for anybody but by coming.
            Fact::Committed { zxid } if std::mem::take(&mut self.changed) => {
                let graph = self.graph();
                if let Some(owner) = graph.keys().find(|owner| Self::is_in_circle(&graph, **owner)) {
                    return Err(format!("after {zxid} {owner:?} waits for itself: {graph:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::{SessionId, Zxid};

    use super::super::judge;
    use super::*;
    use crate::history::Millis;

    const COMMITTED: Fact = Fact::Committed { zxid: Zxid(1) };

    /// A place of an owner; 0 is nobody.
    fn place(lock: usize, token: i64, mode: Mode, owner: u64) -> Fact {
        let owner = (owner > 0).then_some(Owner::Named(owner));
        let (lock, session, token) = (Lock(lock), SessionId(token), FencingToken(token));
        Fact::Queued { lock, token, session, mode, owner }
    }

    fn holds(lock: usize, token: i64) -> Fact {
        let (lock, session, zxid, token) = (Lock(lock), SessionId(token), Zxid(token), FencingToken(token));
        Fact::Entitled { lock, token, session, limit: None, zxid, at: Millis(0) }
    }

    fn refused(lock: usize, mode: Mode, owner: u64, circle: &[(usize, i64)]) -> Fact {
        let circle = circle.iter().map(|(lock, token)| (Lock(*lock), FencingToken(*token))).collect();
        let owner = Some(Owner::Named(owner));
        Fact::Refused { lock: Lock(lock), session: SessionId(1), mode, owner, circle }
    }

    fn opinion(facts: &[Fact]) -> Result<(), String> {
        judge(NoDeadlock::default(), facts)
    }

    use Mode::{Exclusive, Shared};

    #[test]
    fn two_that_wait_for_each_other_are_caught() {
        let held = [place(0, 1, Exclusive, 1), holds(0, 1), place(1, 2, Exclusive, 2), holds(1, 2)];
        let one_waits = [&held[..], &[place(1, 3, Exclusive, 1), COMMITTED]].concat();
        assert_eq!(opinion(&one_waits), Ok(()));
        assert!(opinion(&[&one_waits[..], &[place(0, 4, Exclusive, 2), COMMITTED]].concat()).is_err());
        assert_eq!(opinion(&[&one_waits[..], &[place(0, 4, Exclusive, 0), COMMITTED]].concat()), Ok(()));
    }

    #[test]
    fn a_circle_behind_a_waiter_without_an_owner_is_caught() {
        let facts = [
            place(0, 1, Shared, 1),
            holds(0, 1),
            place(0, 2, Exclusive, 0),
            place(1, 3, Exclusive, 2),
            holds(1, 3),
            place(1, 4, Exclusive, 1),
            place(0, 5, Shared, 2),
            COMMITTED,
        ];
        assert!(opinion(&facts).is_err());
    }

    #[test]
    fn readers_do_not_wait_for_readers() {
        let facts = [
            place(0, 1, Shared, 1),
            holds(0, 1),
            place(1, 2, Shared, 2),
            holds(1, 2),
            place(1, 3, Shared, 1),
            place(0, 4, Shared, 2),
            COMMITTED,
        ];
        assert_eq!(opinion(&facts), Ok(()));
    }

    #[test]
    fn a_refusal_without_a_circle_is_caught() {
        let held = [place(0, 1, Exclusive, 1), holds(0, 1), place(1, 2, Exclusive, 2), holds(1, 2)];
        let wrong = [&held[..], &[refused(1, Exclusive, 1, &[(1, 2), (0, 1)])]].concat();
        assert!(opinion(&wrong).unwrap_err().contains("without need"));
        let waits = [&held[..], &[place(0, 3, Exclusive, 2)]].concat();
        let right = [&waits[..], &[refused(1, Exclusive, 1, &[(1, 2), (0, 1)])]].concat();
        assert_eq!(opinion(&right), Ok(()));
        let nonsense = [&waits[..], &[refused(1, Exclusive, 1, &[(1, 2), (0, 9)])]].concat();
        assert!(opinion(&nonsense).unwrap_err().contains("not there"));
    }
}
