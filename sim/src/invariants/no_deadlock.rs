//! no-deadlock: the log never reaches a state in which owners wait for each other in a circle, and refuses a
//! queue position only if waiting there would have closed a circle.
//!
//! The checker is naive and recomputes the graph of waiting owners from the whole queues, by the rule of
//! strict order. A waiter waits for every earlier position with an excluding mode, and for the blockers of
//! every such position. The creator of a position waits for all owners that work under the position, and so
//! does every waiter for the position; nothing waits in the other direction.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::FencingToken;
use rowlock_proto::lock::Mode;

use super::Invariant;
use crate::history::{Fact, Lock, Owner};

#[derive(Clone, Copy, Debug)]
struct Place {
    mode: Mode,
    owner: Option<Owner>,
    holds: bool,
    number: u64,
}

type Queues = BTreeMap<Lock, BTreeMap<FencingToken, Place>>;

#[derive(Default)]
pub struct NoDeadlock {
    queues: Queues,
    /// A queue has a new position since the last search for circles.
    changed: bool,
}

type Graph = BTreeMap<Owner, BTreeSet<Owner>>;

/// Returns the owner without the enclosing position.
fn root(owner: Owner) -> Owner {
    if let Owner::Under(session, ..) = owner { Owner::Session(session) } else { owner }
}

impl NoDeadlock {
    /// Returns the indexes of the earlier positions that position `at` waits for.
    fn waits_for(queue: &[Place], at: usize) -> BTreeSet<usize> {
        let mut blockers = BTreeSet::new();
        let mut blocked = vec![at];
        while let Some(waiter) = blocked.pop() {
            for ahead in 0..waiter {
                // Any one of several permit holders may release enough permits.
                let go_together = matches!(
                    (queue[ahead].mode, queue[waiter].mode),
                    (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_))
                );
                if !go_together && blockers.insert(ahead) && !queue[ahead].holds {
                    blocked.push(ahead);
                }
            }
        }
        blockers
    }

    fn graph(queues: &Queues) -> Graph {
        let mut workers: BTreeMap<u64, BTreeSet<Owner>> = BTreeMap::new();
        for owner in queues.values().flat_map(BTreeMap::values).filter_map(|place| place.owner) {
            if let Owner::Under(_, number) = owner {
                workers.entry(number).or_default().insert(root(owner));
            }
        }
        let mut graph = Graph::new();
        for queue in queues.values() {
            let queue: Vec<Place> = queue.values().copied().collect();
            let workers_of = |at: usize| workers.get(&queue[at].number).into_iter().flatten().copied();
            for (at, place) in queue.iter().enumerate() {
                let Some(owner) = place.owner else { continue };
                let edges = graph.entry(root(owner)).or_default();
                edges.extend(workers_of(at));
                let ahead = if place.holds { BTreeSet::new() } else { Self::waits_for(&queue, at) };
                edges.extend(ahead.iter().filter_map(|ahead| queue[*ahead].owner).map(root));
                edges.extend(ahead.into_iter().flat_map(workers_of));
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

    /// Reports whether `owner` would be in a circle if `owner` waited for `lock`.
    fn would_close(&self, owner: Owner, lock: Lock, mode: Mode) -> bool {
        let mut queues = self.queues.clone();
        let place = Place { mode, owner: Some(owner), holds: false, number: 0 };
        queues.entry(lock).or_default().insert(FencingToken(i64::MAX), place);
        Self::is_in_circle(&Self::graph(&queues), root(owner))
    }

    fn check_refusal(
        &self,
        lock: Lock,
        mode: Mode,
        owner: Option<Owner>,
        circle: &[(Lock, FencingToken)],
    ) -> Result<(), String> {
        let owner = owner.ok_or_else(|| format!("{lock:?} was refused without an owner"))?;
        if !self.would_close(owner, lock, mode) {
            return Err(format!("{lock:?} was refused to {owner:?} without need: {circle:?} is no circle"));
        }
        let place = |(lock, token): &(Lock, FencingToken)| self.queues.get(lock)?.get(token);
        let is_own = |at: &(Lock, FencingToken)| {
            place(at).is_some_and(|place| {
                let is_above = matches!(owner, Owner::Under(_, number) if number == place.number);
                is_above || place.owner.map(root) == Some(root(owner))
            })
        };
        if circle.iter().any(|at| place(at).is_none()) || !circle.last().is_some_and(is_own) {
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
            Fact::Queued { lock, token, mode, owner, number, .. } => {
                let place = Place { mode: *mode, owner: *owner, holds: false, number: *number };
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
            // A new circle needs a new position.
            Fact::Committed { zxid } if std::mem::take(&mut self.changed) => {
                let graph = Self::graph(&self.queues);
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

    use super::super::check_history;
    use super::*;
    use crate::history::Millis;

    const COMMITTED: Fact = Fact::Committed { zxid: Zxid(1) };

    /// A place of an owner; 0: no owner.
    fn place(lock: usize, token: i64, mode: Mode, owner: u64) -> Fact {
        let owner = (owner > 0).then_some(Owner::Named(owner));
        let (lock, session, token) = (Lock(lock), SessionId(token), FencingToken(token));
        Fact::Queued { lock, token, session, mode, owner, number: number_of(token) }
    }

    fn number_of(token: FencingToken) -> u64 {
        token.0 as u64
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

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(NoDeadlock::default(), facts)
    }

    use Mode::{Exclusive, Shared};

    #[test]
    fn two_that_wait_for_each_other_are_caught() {
        let held = [place(0, 1, Exclusive, 1), holds(0, 1), place(1, 2, Exclusive, 2), holds(1, 2)];
        let one_waits = [&held[..], &[place(1, 3, Exclusive, 1), COMMITTED]].concat();
        assert_eq!(check_facts(&one_waits), Ok(()));
        assert!(check_facts(&[&one_waits[..], &[place(0, 4, Exclusive, 2), COMMITTED]].concat()).is_err());
        assert_eq!(check_facts(&[&one_waits[..], &[place(0, 4, Exclusive, 0), COMMITTED]].concat()), Ok(()));
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
        assert!(check_facts(&facts).is_err());
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
        assert_eq!(check_facts(&facts), Ok(()));
    }

    #[test]
    fn the_creator_of_a_position_waits_for_the_owners_under_it() {
        let under = |token: i64| Some(Owner::Under(SessionId(9), number_of(FencingToken(token))));
        let of = |lock: usize, token: i64, owner| {
            let (lock, session, token) = (Lock(lock), SessionId(9), FencingToken(token));
            Fact::Queued { lock, token, session, mode: Exclusive, owner, number: number_of(token) }
        };
        // Owner 1 made position 1. An owner under position 1 holds position 2 and waits for position 3 of
        // owner 2.
        let facts = [
            place(0, 1, Exclusive, 1),
            holds(0, 1),
            of(1, 2, under(1)),
            holds(1, 2),
            place(2, 3, Exclusive, 2),
            holds(2, 3),
            of(2, 4, under(1)),
            COMMITTED,
        ];
        assert_eq!(check_facts(&facts), Ok(()));
        let asks =
            |lock, token, owner| [&facts[..], &[place(lock, token, Exclusive, owner), COMMITTED]].concat();
        assert_eq!(check_facts(&asks(1, 5, 3)), Ok(()), "a third one is in no circle");
        assert!(
            check_facts(&asks(0, 5, 2)).is_err(),
            "owner 2 waits for 1, who waits for the worker, who waits for 2"
        );
        // An owner that works under position 1 may not wait for position 1, whichever owner made the
        // position.
        let session = SessionId(9);
        let circle = vec![(Lock(0), FencingToken(1))];
        let refused = Fact::Refused { lock: Lock(0), session, mode: Exclusive, owner: under(1), circle };
        assert_eq!(check_facts(&[&facts[..], &[refused]].concat()), Ok(()));
        let circle = vec![(Lock(2), FencingToken(3))];
        let beside = Fact::Refused { lock: Lock(2), session, mode: Exclusive, owner: under(1), circle };
        assert!(check_facts(&[&facts[..6], &[beside]].concat()).is_err(), "owner 2 waits for nothing");
    }

    #[test]
    fn a_refusal_without_a_circle_is_caught() {
        let held = [place(0, 1, Exclusive, 1), holds(0, 1), place(1, 2, Exclusive, 2), holds(1, 2)];
        let wrong = [&held[..], &[refused(1, Exclusive, 1, &[(1, 2), (0, 1)])]].concat();
        assert!(check_facts(&wrong).unwrap_err().contains("without need"));
        let waits = [&held[..], &[place(0, 3, Exclusive, 2)]].concat();
        let right = [&waits[..], &[refused(1, Exclusive, 1, &[(1, 2), (0, 1)])]].concat();
        assert_eq!(check_facts(&right), Ok(()));
        let nonsense = [&waits[..], &[refused(1, Exclusive, 1, &[(1, 2), (0, 9)])]].concat();
        assert!(check_facts(&nonsense).unwrap_err().contains("not there"));
    }
}
