//! Facts about a state in the middle of a cluster's life: open sessions, and queues with holders and waiters,
//! as if all of them had just come in this order.

use rowlock_proto::FencingToken;
use rowlock_proto::lock::{Owner as Asked, place_number};
use rowlock_state::{ContenderView, LockView, Machine};

use super::{FactRecorder, Wish};
use crate::history::{Fact, Lock, Millis, Owner};

impl FactRecorder {
    /// Returns the facts that lead to a state. The recorder must be new, and know all locks of the state.
    pub(super) fn start(&mut self, machine: &Machine) -> Vec<Fact> {
        let mut facts = self.limits(machine);
        for (id, session) in machine.sessions() {
            let (attachment, timeout_ms, at) =
                (session.attachment, session.timeout_ms, Millis(machine.time_ms()));
            facts.push(Fact::SessionOpened { session: id, attachment, timeout_ms, at });
            let created = |path: &str| Fact::EphemeralCreated { path: path.to_owned(), session: id };
            facts.extend(session.ephemerals_in_order().into_iter().map(created));
        }
        for queue in machine.locks() {
            if let Some(lock) = self.locks.find(queue.path()) {
                self.start_queue(machine, lock, queue, &mut facts);
            }
        }
        facts
    }

    fn start_queue(&mut self, machine: &Machine, lock: Lock, queue: LockView<'_>, facts: &mut Vec<Fact>) {
        let mut places: Vec<ContenderView> = queue.holders().chain(queue.waiters()).collect();
        places.sort_by_key(|place| place.token);
        for place in &places {
            let (token, session, mode) = (place.token, place.session, place.mode);
            let owner = self.owner_at_start(place);
            let number = self.number(place_number(&place.path), place.address.clone());
            self.members.insert(place.path.clone(), (lock, token));
            self.places.insert((lock, token), wish(place, owner));
            facts.push(Fact::Queued { lock, token, session, mode, owner, number });
        }
        for place in &places {
            let (token, session, zxid) = (place.token, place.session, machine.last_zxid());
            let Some(at) = place.granted_ms.map(Millis) else { continue };
            // The limit may have been lowered since the grant.
            facts.push(Fact::Entitled { lock, token, session, limit: None, zxid, at });
            if let Some(question) = &place.asked {
                let deadline = question.deadline.map(|it| (Millis(it.since_ms), it.within_ms));
                facts.push(Fact::Questioned { lock, token, asked: Millis(question.asked_ms), deadline });
            }
        }
        if let Some(until) = queue.delayed_until_ms().map(Millis) {
            self.delays.insert(lock, until);
            facts.push(Fact::Delayed { lock, until });
        }
    }

    /// Returns the owner of a position. The state has a hash in place of a named owner's number, so this
    /// owner equals none of later requests ([`hidden_owners`]).
    fn owner_at_start(&mut self, place: &ContenderView) -> Option<Owner> {
        match place.owner {
            Asked::Unnamed => None,
            Asked::Session => Some(Owner::Session(place.session)),
            Asked::Named(hash) => Some(Owner::Named(self.number(hash, "in the state".to_owned()))),
            Asked::Under(number) => {
                Some(Owner::Under(place.session, self.number(number, place.address.clone())))
            }
        }
    }
}

/// Returns the positions of a state whose owners the state hides: deadlock detection cannot be checked beside
/// them.
pub fn hidden_owners(machine: &Machine) -> impl Iterator<Item = (String, FencingToken)> {
    machine.locks().flat_map(|queue| {
        let places = queue.holders().chain(queue.waiters());
        let hidden = places.filter(|place| matches!(place.owner, Asked::Named(_)));
        hidden.map(move |place| (queue.path().to_owned(), place.token))
    })
}

fn wish(place: &ContenderView, owner: Option<Owner>) -> Wish {
    Wish {
        mode: place.mode,
        owner,
        has_maximum: place.max_hold_ms != 0,
        lock_delay_ms: place.lock_delay_ms,
        min_hold_ms: place.min_hold_ms,
        min_hold_lapses: place.min_hold_lapses,
        granted: place.granted_ms.map(Millis),
    }
}
