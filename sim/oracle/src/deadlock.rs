//! Circles of owners that wait for each other, from the whole graph.
//!
//! A waiter waits for every earlier position in an excluding mode, and for the blockers of every such
//! position. The maker of a position waits for the work under the position, and so does every waiter for the
//! position; nothing waits in the other direction.
//!
//! The state must refuse a newcomer that closes a circle of positions. The state may refuse a newcomer whose
//! circle leads from the work under a position to another position of the working session.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rowlock_proto::SessionId;
use rowlock_proto::lock::{Owner, place_number};

use crate::book::{Lock, Oracle, Position, go_together};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Session(SessionId),
    Named(u64),
    /// All work under positions with this number, from this address.
    Under(u64, Option<IpAddr>),
}

/// Returns the key of the work that a position belongs to.
fn work(position: &Position) -> Option<Party> {
    if let Owner::Under(number) = position.owner {
        Some(Party::Under(number, address(position)))
    } else {
        None
    }
}

type Graph = BTreeMap<Party, BTreeSet<Party>>;

fn party(position: &Position) -> Option<Party> {
    match position.owner {
        Owner::Unnamed => None,
        Owner::Session | Owner::Under(_) => Some(Party::Session(position.session)),
        Owner::Named(number) => Some(Party::Named(number)),
    }
}

/// Returns an address in the form to compare; `None` if unknown.
fn address(position: &Position) -> Option<IpAddr> {
    position.address.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// Returns the indexes of the earlier positions that position `at` waits for.
fn blockers(queue: &[&Position], at: usize) -> BTreeSet<usize> {
    let (mut found, mut blocked) = (BTreeSet::new(), vec![at]);
    while let Some(waiter) = blocked.pop() {
        for ahead in 0..waiter {
            let in_the_way = !go_together(queue[ahead].mode, queue[waiter].mode);
            if in_the_way && found.insert(ahead) && queue[ahead].granted_ms.is_none() {
                blocked.push(ahead);
            }
        }
    }
    found
}

/// Returns the parties that the maker of position `at` waits for.
fn edges(queue: &[&Position], at: usize) -> BTreeSet<Party> {
    let workers = |at: usize| Party::Under(place_number(&queue[at].path), address(queue[at]));
    let is_waiting = queue[at].granted_ms.is_none();
    let ahead = if is_waiting { blockers(queue, at) } else { BTreeSet::new() };
    let owners = ahead.iter().filter_map(|ahead| party(queue[*ahead]));
    owners.chain(ahead.iter().copied().chain([at]).map(workers)).collect()
}

/// Returns who waits for whom. Work waits for what its positions wait for; with `is_wide`, for what all
/// positions of its session wait for.
fn graph(queues: &[Vec<&Position>], is_wide: bool) -> Graph {
    let mut graph = Graph::new();
    for queue in queues {
        for (at, position) in queue.iter().enumerate() {
            for node in party(position).into_iter().chain(work(position)) {
                graph.entry(node).or_default().extend(edges(queue, at));
            }
            if let (Some(work), true) = (work(position), is_wide) {
                graph.entry(work).or_default().extend(party(position));
            }
        }
    }
    graph
}

fn reaches(graph: &Graph, from: BTreeSet<Party>, to: &[Party]) -> bool {
    let (mut reached, mut todo) = (from.clone(), Vec::from_iter(from));
    while let Some(next) = todo.pop() {
        if to.contains(&next) {
            return true;
        }
        let ahead = graph.get(&next).into_iter().flatten();
        todo.extend(ahead.filter(|party| reached.insert(**party)).copied());
    }
    false
}

impl Lock {
    fn all(&self) -> Vec<&Position> {
        self.positions.iter().collect()
    }
}

impl Oracle {
    /// Returns whether the newcomer closes a circle by waiting for the lock.
    pub(crate) fn is_circle(&self, lock: &str, newcomer: &Position, is_wide: bool) -> bool {
        let Some(owner) = party(newcomer) else { return false };
        let mut queue = self.locks.get(lock).map(Lock::all).unwrap_or_default();
        queue.push(newcomer);
        let mut queues: Vec<Vec<&Position>> = self.locks.values().map(Lock::all).collect();
        let mut from = edges(&queue, queue.len() - 1);
        from.remove(&Party::Under(place_number(&newcomer.path), address(newcomer)));
        queues.extend(is_wide.then(|| vec![newcomer]));
        let own: Vec<Party> = [owner].into_iter().chain(work(newcomer)).collect();
        let graph = graph(&queues, is_wide);
        if is_wide {
            from.extend(graph.get(&owner).into_iter().flatten());
        }
        reaches(&graph, from, &own)
    }

    /// Returns a new position whose owner waits for itself by the position, with all owners that wait. Work
    /// under a position that did not exist when the work began closes no circle.
    pub(crate) fn new_circle(&self) -> Option<String> {
        let waits = |new: &&Position| {
            party(new).is_some() && self.position_of(&new.claim()).is_some_and(|it| it.granted_ms.is_none())
        };
        let mut owned = self.news.entered.iter().filter(waits).peekable();
        owned.peek()?;
        let queues: Vec<Vec<&Position>> = self.locks.values().map(Lock::all).collect();
        let graph = graph(&queues, false);
        let is_in_circle = |new: &&Position| {
            let place = |queue: &[&Position]| queue.iter().position(|it| it.path == new.path);
            let found = queues.iter().find_map(|queue| Some(edges(queue, place(queue)?)));
            let mut from = found.unwrap_or_default();
            from.remove(&Party::Under(place_number(&new.path), address(new)));
            let own: Vec<Party> = party(new).into_iter().chain(work(new)).collect();
            reaches(&graph, from, &own)
        };
        let new = owned.find(is_in_circle)?;
        let waits = |ahead: &BTreeSet<Party>| -> Vec<Party> {
            ahead.iter().filter(|party| graph.contains_key(party)).copied().collect()
        };
        let graph: BTreeMap<&Party, _> = graph.iter().map(|(party, ahead)| (party, waits(ahead))).collect();
        Some(format!("{:?} waits for itself by {}: {graph:?}", party(new)?, new.path))
    }
}
