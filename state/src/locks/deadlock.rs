//! Deadlock detection: would a new waiter close a circle of owners that wait for each other?
//!
//! The wait-for graph is read off the committed queues: a waiter waits for everyone before it who could not hold beside
//! it, and for everyone before whom one of those waits; an owner is blocked by each of its waiters. Only places with an
//! owner are part of a circle. What the maker of an unnamed place waits for in other queues is not known; in this one it
//! hands on what those behind it wait for.
//!
//! Invariant: an owner does one thing at a time, so one waiting place blocks all that it holds: a circle is a deadlock.
//! Bounded: after [`STEPS_MAX`] places the search gives up and lets the newcomer wait, on every replica alike.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rowlock_proto::lock::{Mode, Party};

use super::index::{Key, Lock, OwnerKey};
use crate::machine::Machine;

/// Places looked at for one command, however many locks it asks for.
const STEPS_MAX: usize = 10_000;

/// How an owner was reached: through its place `at` in the lock `path`, for which the owner `waiter` waits.
struct Step<'a> {
    waiter: OwnerKey,
    path: &'a str,
    at: &'a Key,
}

impl Machine {
    /// The circle that `owner` would close by waiting for the lock in this mode: the places that are waited for, the
    /// first by `owner` and the last of them its own.
    pub(super) fn circle(
        &self,
        owner: OwnerKey,
        lock: &str,
        mode: Mode,
        steps: &mut usize,
    ) -> Option<Vec<Party>> {
        // Whoever holds nothing and waits nowhere is waited for by nobody.
        self.locks.places_of(owner).next()?;
        let mut reached: BTreeMap<OwnerKey, Step<'_>> = BTreeMap::new();
        let mut todo: Vec<OwnerKey> = Vec::new();
        let queue = self.locks.get_entry(lock)?;
        self.look_ahead(owner, queue, None, mode, &mut reached, &mut todo, steps);
        while let Some(next) = todo.pop() {
            if next == owner {
                return Some(self.parties(owner, &reached));
            }
            for (path, key) in self.locks.places_of(next) {
                let Some(entry) = self.locks.get_entry(path) else { continue };
                let Some(waiter) = entry.1.waiters.get(key) else { continue };
                self.look_ahead(next, entry, Some(key), waiter.mode, &mut reached, &mut todo, steps);
                if *steps > STEPS_MAX {
                    return None;
                }
            }
        }
        None
    }

    /// Notes the owners before `key` (before the end of the queue, without one) that keep `waiter` from holding.
    #[expect(clippy::too_many_arguments, reason = "the state of one search")]
    fn look_ahead<'a>(
        &'a self,
        waiter: OwnerKey,
        (path, lock): (&'a str, &'a Lock),
        key: Option<&Key>,
        mode: Mode,
        reached: &mut BTreeMap<OwnerKey, Step<'a>>,
        todo: &mut Vec<OwnerKey>,
        steps: &mut usize,
    ) {
        let before = lock.holders.iter().chain(lock.waiters.iter());
        // Readers come to hold together with the readers before them, unless somebody else is in between: he must go
        // first, and waits for those readers himself. Likewise those who want permits: one of many that come free may
        // be enough, so nobody is taken to wait for any of them.
        let mut together = Vec::new();
        for (at, ahead) in before.take_while(|(at, _)| key.is_none_or(|key| *at < key)) {
            *steps += 1;
            if *steps > STEPS_MAX {
                return;
            }
            together.push((at, ahead));
            if may_hold_together(mode, ahead.mode) {
                continue;
            }
            for (at, in_the_way) in together.drain(..) {
                let Some(owner) = OwnerKey::new(in_the_way.owner, in_the_way.session) else { continue };
                if let Entry::Vacant(entry) = reached.entry(owner) {
                    entry.insert(Step { waiter, path, at });
                    todo.push(owner);
                }
            }
        }
    }

    /// The circle, from the newcomer on.
    fn parties(&self, owner: OwnerKey, reached: &BTreeMap<OwnerKey, Step<'_>>) -> Vec<Party> {
        let mut parties = Vec::new();
        let mut at = owner;
        loop {
            let step = &reached[&at];
            let lock = self.locks.get(step.path).expect("it was walked through");
            parties.push(self.party(lock, step.at));
            at = step.waiter;
            if at == owner {
                break;
            }
        }
        parties.reverse();
        parties
    }
}

fn may_hold_together(one: Mode, other: Mode) -> bool {
    matches!((one, other), (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)))
}
