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

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::Acl;
    use rowlock_proto::lock::Acquire;
    use rowlock_proto::request::Create;
    use rowlock_proto::{CreateMode, Request, SessionId};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Batch, Command, Origin, Proposal};

    use super::*;
    use crate::fact_recorder::Reference;
    use crate::history::{Index, Locks};

    const LOCK: &str = "/l";

    /// Applies a command as the next entry.
    fn apply(reference: &mut Reference, session: SessionId, command: Command) -> Vec<Fact> {
        let (origin, attachment, identities) = (Origin::default(), Attachment(1), Default::default());
        let proposal = Proposal { origin, session, attachment, identities, command };
        let index = Index(reference.applied().0 + 1);
        let time_ms = 7 * index.0 as i64;
        let batch = Batch { time_ms, proposals: vec![proposal], ..Batch::default() };
        reference.apply(index, Some(&batch.encode())).unwrap()
    }

    fn open(reference: &mut Reference) -> SessionId {
        let opening = Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 9_000 };
        let facts = apply(reference, SessionId::NONE, opening);
        let opened = facts.iter().find_map(|fact| match fact {
            Fact::SessionOpened { session, .. } => Some(*session),
            _ => None,
        });
        opened.expect("a session was opened")
    }

    fn acquire(lock_delay_ms: u32) -> Command {
        let acquire = Acquire { owner: Asked::Session, lock_delay_ms, ..Acquire::exclusive(LOCK, "p-") };
        Command::Client(Request::Acquire([acquire].into()))
    }

    fn new() -> Reference {
        Reference::new(Locks::at([LOCK.to_owned()]))
    }

    #[test]
    fn a_state_leads_to_the_facts_of_its_log() {
        let mut reference = new();
        let (one, other) = (open(&mut reference), open(&mut reference));
        let mut before: Vec<Fact> = apply(&mut reference, one, acquire(5_000));
        before.extend(apply(&mut reference, other, acquire(0)));
        let state = reference.machine().clone();
        let (mut later, start) = Reference::after(Locks::at([LOCK.to_owned()]), state, reference.applied());
        for fact in
            before.iter().filter(|it| matches!(it, Fact::Queued { .. } | Fact::EphemeralCreated { .. }))
        {
            assert!(start.contains(fact), "{fact:?}: {start:?}");
        }
        let entitled =
            start.iter().filter(|fact| matches!(fact, Fact::Entitled { session, .. } if *session == one));
        assert_eq!(entitled.count(), 1, "{start:?}");
        let ends = || Command::ExpireSession { session: one, attachment: Attachment(1) };
        let (as_before, now) =
            (apply(&mut reference, SessionId::NONE, ends()), apply(&mut later, SessionId::NONE, ends()));
        assert!(as_before.iter().any(|fact| matches!(fact, Fact::Delayed { .. })), "{as_before:?}");
        assert_eq!(now, as_before, "the same entry after the same state");
    }

    #[test]
    fn an_ephemeral_znode_that_looks_numbered_takes_no_position() {
        let mut reference = new();
        let session = open(&mut reference);
        for (path, mode) in [(LOCK, CreateMode::Persistent), ("/l/member-0000000001", CreateMode::Ephemeral)]
        {
            let (flags, acl) = (mode.flags(), Some(Acl::shared_open()));
            let create = Create { path: path.to_owned(), data: None, acl, flags };
            let facts = apply(&mut reference, session, Command::Client(Request::Create2(create)));
            assert!(!facts.iter().any(|fact| matches!(fact, Fact::Queued { .. })), "{facts:?}");
        }
    }
}
