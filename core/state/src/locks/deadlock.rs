//! Deadlock detection: finds out whether a new waiter closes a circle of owners that wait for each other.
//!
//! The committed queues define the wait-for graph. A waiter waits for every position in front that cannot
//! hold beside the waiter, and for all positions that a waiter in front waits for; each waiter of an owner
//! blocks the owner. Only positions with an owner belong to a circle. The queues do not reveal the other
//! waits of an unnamed position's maker; within one queue an unnamed position passes on the waits of
//! positions behind. The maker of a position also waits for all work under the position ([`Owner::Under`]): a
//! command under a lock that asks for another lock. This edge leads from an ancestor to its descendants only:
//! two commands under one lock do not wait for each other because of the common lock.
//!
//! [`Owner::Under`]: rowlock_proto::lock::Owner::Under
//!
//! Invariant: an owner does one thing at a time, so one waiting position blocks all holds of the owner: a
//! circle is a deadlock. Bounded: after [`STEPS_MAX`] positions the search gives up and lets the newcomer
//! wait, on every replica alike. The search also gives up when the commands of one log entry have visited
//! [`ENTRY_STEPS_MAX`] together, but not before its own [`SEARCH_FLOOR`]: large searches leave other commands
//! enough for the circles that programs close by mistake.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rowlock_proto::lock::{Mode, Party};

use super::contender::{Key, OwnerKey};
use super::lock::Lock;
use super::party::Room;
use crate::guard::decides;
use crate::machine::Machine;
use crate::steps;

/// Limit of positions visited by one command, for all its locks.
const STEPS_MAX: usize = 10_000;

/// Limit of positions visited by all commands of one entry, beside each command's minimum.
const ENTRY_STEPS_MAX: usize = 20_000;

/// Positions that each command may always visit.
pub(crate) const SEARCH_FLOOR: usize = 128;

/// The requester of a position.
pub(super) struct Newcomer {
    pub owner: OwnerKey,
    /// Owner of the position that the newcomer works under.
    pub under: Option<OwnerKey>,
    pub mode: Mode,
}

/// Budget of one command.
pub(super) struct Search<'a> {
    /// Steps taken by the deadlock search so far.
    pub steps: usize,
    /// Limit of steps, beyond which the search gives up.
    pub steps_max: usize,
    /// Room for other clients' names in the answer.
    pub room: Room<'a>,
}

/// Step of the search: `waiter` waits for this owner at the owner's position `at` of the lock `path`.
struct Step<'a> {
    waiter: OwnerKey,
    path: &'a str,
    at: &'a Key,
}

impl Machine {
    /// Returns the limit of positions that the next command may visit.
    pub(super) fn search_steps_max(&self) -> usize {
        const { assert!(SEARCH_FLOOR <= STEPS_MAX, "what each command may look at is within what one may") };
        let left = ENTRY_STEPS_MAX.saturating_sub(self.searched);
        left.clamp(SEARCH_FLOOR, STEPS_MAX)
    }

    /// Returns the circle that the newcomer closes by waiting for the lock. The newcomer waits for the first
    /// position; the last position belongs to the newcomer, or the newcomer works under the last position.
    pub(super) fn circle(&self, by: Newcomer, lock: &str, search: &mut Search<'_>) -> Option<Vec<Party>> {
        let Newcomer { owner, under, mode } = by;
        // An owner without any position, working under no position, closes no circle.
        if under.is_none() {
            self.locks.places_of(owner).next()?;
        }
        let mut reached: BTreeMap<OwnerKey, Step<'_>> = BTreeMap::new();
        let mut todo: Vec<OwnerKey> = Vec::new();
        let queue = self.locks.get_entry(lock)?;
        let Search { steps, steps_max, room } = search;
        let mut count = Count { steps, max: *steps_max };
        self.collect_ahead(owner, queue, None, mode, &mut reached, &mut todo, &mut count);
        while let Some(next) = todo.pop() {
            if decides!("deadlock-is-found", next == owner || Some(next) == under) {
                return Some(self.parties(owner, next, &reached, room));
            }
            for (path, key) in self.locks.places_of(next) {
                count.one_more();
                let Some(entry) = self.locks.get_entry(path) else { continue };
                let Some(maker) = entry.1.contender(key.as_ref()) else { continue };
                // The maker does one thing at a time: the maker waits for the work before releasing any
                // position.
                let step = Step { waiter: next, path: entry.0, at: key };
                reach(OwnerKey::workers_of(key, maker), step, &mut reached, &mut todo);
                if decides!("deadlock-maker-waits", maker.granted_ms.is_none()) {
                    self.collect_ahead(
                        next,
                        entry,
                        Some(key),
                        maker.mode,
                        &mut reached,
                        &mut todo,
                        &mut count,
                    );
                }
                if count.is_over() {
                    return None;
                }
            }
        }
        None
    }

    /// Records the owners in front of `key` (of the whole queue, without a key) that keep `waiter` from
    /// holding.
    #[expect(clippy::too_many_arguments, reason = "the state of one search")]
    fn collect_ahead<'a>(
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
        // Readers hold together with the readers in front, unless another position is in between: the
        // position in between goes first, and waits for the readers in front itself. Likewise for permits:
        // any of many permits may suffice, so no position waits for a specific one.
        let mut together = Vec::new();
        for (at, ahead) in lock.contenders().take_while(|(at, _)| key.is_none_or(|key| *at < key)) {
            if !count.one_more() {
                return;
            }
            together.push((at, ahead));
            if decides!("deadlock-skips-compatible", may_hold_together(mode, ahead.mode)) {
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

    /// Returns the circle's positions from the newcomer to the last reached, as far as the answer has room.
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

/// Positions visited by one command.
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

/// Records the first way an owner was reached.
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
