//! Deadlock detection: would a new waiter close a circle of owners that wait for each other?
//!
//! The wait-for graph is read off the committed queues: a waiter waits for everyone before it who could not
//! hold beside it, and for everyone before whom one of those waits; an owner is blocked by each of its
//! waiters. Only places with an owner are part of a circle. What the maker of an unnamed place waits for in
//! other queues is not known; in this one it hands on what those behind it wait for. The maker of a place
//! also waits for all that works under it ([`Owner::Under`]): a command under a lock that asks for another
//! lock. That goes from an ancestor to its descendants only: two commands under one lock do not wait for each
//! other by that.
//!
//! [`Owner::Under`]: rowlock_proto::lock::Owner::Under
//!
//! Invariant: an owner does one thing at a time, so one waiting place blocks all that it holds: a circle is a
//! deadlock. Bounded: after [`STEPS_MAX`] places the search gives up and lets the newcomer wait, on every
//! replica alike. So it does when the commands of one log entry have looked at [`ENTRY_STEPS_MAX`] together,
//! but not before it has looked at [`SEARCH_FLOOR`] itself: what some search for leaves others enough for the
//! circles that programs close by mistake.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rowlock_proto::lock::{Mode, Party};

use super::acquire::Search;
use super::key::Key;
use super::lock::Lock;
use super::owner::OwnerKey;
use super::party::Room;
use crate::machine::Machine;
use crate::steps;

/// Places looked at for one command, however many locks it asks for.
const STEPS_MAX: usize = 10_000;

/// Places looked at for all commands of one entry, but for what each may look at in any case.
const ENTRY_STEPS_MAX: usize = 20_000;

/// Places that each command may always search.
pub(crate) const SEARCH_FLOOR: usize = 128;

/// The requester of a place.
pub(super) struct Newcomer {
    pub owner: OwnerKey,
    /// With whom it works under the same place.
    pub under: Option<OwnerKey>,
    pub mode: Mode,
}

/// How an owner was reached: through its place `at` in the lock `path`, for which the owner `waiter` waits.
struct Step<'a> {
    waiter: OwnerKey,
    path: &'a str,
    at: &'a Key,
}

impl Machine {
    /// Returns how many places the next command may search.
    pub(super) fn search_steps_max(&self) -> usize {
        const { assert!(SEARCH_FLOOR <= STEPS_MAX, "what each command may look at is within what one may") };
        let left = ENTRY_STEPS_MAX.saturating_sub(self.searched);
        left.clamp(SEARCH_FLOOR, STEPS_MAX)
    }

    /// The circle that the newcomer would close by waiting for the lock: the places that are waited for, the
    /// first by the newcomer, and the last of them its own or the one that it works under.
    pub(super) fn circle(&self, by: Newcomer, lock: &str, search: &mut Search<'_>) -> Option<Vec<Party>> {
        let Newcomer { owner, under, mode } = by;
        // No place waits for an owner that holds nothing, waits nowhere and works under no place.
        if under.is_none() {
            self.locks.places_of(owner).next()?;
        }
        let mut reached: BTreeMap<OwnerKey, Step<'_>> = BTreeMap::new();
        let mut todo: Vec<OwnerKey> = Vec::new();
        let queue = self.locks.get_entry(lock)?;
        let Search { steps, steps_max, room } = search;
        let mut count = Count { steps, max: *steps_max };
        self.look_ahead(owner, queue, None, mode, &mut reached, &mut todo, &mut count);
        while let Some(next) = todo.pop() {
            if next == owner || Some(next) == under {
                return Some(self.parties(owner, next, &reached, room));
            }
            for (path, key) in self.locks.places_of(next) {
                count.one_more();
                let Some(entry) = self.locks.get_entry(path) else { continue };
                let Some(maker) = entry.1.contender(key.as_ref()) else { continue };
                // Its maker does one thing at a time: it waits for that work before it gives back any of its
                // places.
                let step = Step { waiter: next, path: entry.0, at: key };
                reach(OwnerKey::workers_of(key, maker), step, &mut reached, &mut todo);
                if maker.granted_ms.is_none() {
                    self.look_ahead(next, entry, Some(key), maker.mode, &mut reached, &mut todo, &mut count);
                }
                if count.is_over() {
                    return None;
                }
            }
        }
        None
    }

    /// Notes the owners before `key` (before the end of the queue, without one) that keep `waiter` from
    /// holding.
    #[expect(clippy::too_many_arguments, reason = "the state of one search")]
    fn look_ahead<'a>(
        &'a self,
        waiter: OwnerKey,
        (path, lock): (&'a str, &'a Lock),
        key: Option<&Key>,
        mode: Mode,
        reached: &mut BTreeMap<OwnerKey, Step<'a>>,
        todo: &mut Vec<OwnerKey>,
        count: &mut Count<'_>,
    ) {
        debug_assert!(
            steps::uncounted(|| key
                .is_none_or(|key| lock.contender(key.as_ref()).is_some_and(|it| it.granted_ms.is_none()))),
            "{path}: {key:?} does not wait"
        );
        // Readers come to hold together with the readers before them, unless another place is in between: it
        // must go first, and waits for those readers itself. Likewise those who want permits: one of many
        // that come free may be enough, so no place counts as waiting for any of them.
        let mut together = Vec::new();
        for (at, ahead) in lock.contenders().take_while(|(at, _)| key.is_none_or(|key| *at < key)) {
            if !count.one_more() {
                return;
            }
            together.push((at, ahead));
            if may_hold_together(mode, ahead.mode) {
                continue;
            }
            for (at, in_the_way) in together.drain(..) {
                let owner = OwnerKey::new(in_the_way.owner, in_the_way.session);
                let workers = OwnerKey::workers_of(at, in_the_way);
                for owner in owner.into_iter().chain([workers]) {
                    reach(owner, Step { waiter, path, at }, reached, todo);
                }
            }
        }
    }

    /// The circle, from the newcomer on to the last that was reached, as far as there is room.
    fn parties(
        &self,
        owner: OwnerKey,
        last: OwnerKey,
        reached: &BTreeMap<OwnerKey, Step<'_>>,
        room: &mut Room<'_>,
    ) -> Vec<Party> {
        let mut circle = Vec::new();
        let mut at = last;
        loop {
            let step = &reached[&at];
            circle.push(step);
            assert!(circle.len() <= reached.len(), "the way back to the newcomer leads round in a circle");
            at = step.waiter;
            if at == owner {
                break;
            }
        }
        let named = circle.into_iter().rev().map_while(|step| {
            let lock = self.locks.get(step.path).expect("it was walked through");
            self.party(lock, step.at, room)
        });
        named.collect()
    }
}

/// Places that one command has looked at.
struct Count<'a> {
    steps: &'a mut usize,
    max: usize,
}

impl Count<'_> {
    fn one_more(&mut self) -> bool {
        steps::take(1);
        *self.steps += 1;
        !self.is_over()
    }

    fn is_over(&self) -> bool {
        *self.steps > self.max
    }
}

/// Notes how an owner was reached, the first time.
fn reach<'a>(
    owner: OwnerKey,
    step: Step<'a>,
    reached: &mut BTreeMap<OwnerKey, Step<'a>>,
    todo: &mut Vec<OwnerKey>,
) {
    if let Entry::Vacant(entry) = reached.entry(owner) {
        entry.insert(step);
        todo.push(owner);
    }
}

fn may_hold_together(one: Mode, other: Mode) -> bool {
    matches!((one, other), (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)))
}
