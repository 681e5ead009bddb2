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
