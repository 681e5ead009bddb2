//! no-lost-wakeup: once everything is healed, a client whose place the log has granted the lock knows it within a bound,
//! if it still waits for it and for nothing else; and no place is granted the lock of which its client knows nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_proto::{FencingToken, SessionId};
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, Op};
use crate::history::{Fact, Lock};

/// A place in a queue.
struct Place {
    session: SessionId,
    /// When the log granted it.
    granted: Option<Nanos>,
    /// Its client knows that.
    is_known: bool,
}

/// Who waits, and who was granted what.
pub struct GrantInTime {
    bound: Duration,
    now: Nanos,
    healed: Option<Nanos>,
    places: BTreeMap<(Lock, FencingToken), Place>,
    asked: BTreeMap<CallId, (ClientId, SessionId, Lock, Nanos)>,
}

impl GrantInTime {
    /// Demands that a grant is known within this, once everything is healed.
    pub fn within(bound: Duration) -> Self {
        GrantInTime { bound, now: Nanos(0), healed: None, places: BTreeMap::new(), asked: BTreeMap::new() }
    }

    fn overdue(&self, healed: Nanos) -> Result<(), String> {
        for (client, session, lock, since) in self.asked.values() {
            let own = self.places.iter().filter(|(_, place)| place.session == *session);
            let unknown: Vec<_> = own.filter(|(_, place)| !place.is_known).collect();
            // A call for several locks returns when it has them all, so one that is waited for excuses all others.
            let granted = unknown.iter().map(|(_, place)| place.granted);
            let Some(granted) = granted.collect::<Option<Vec<Nanos>>>() else { continue };
            let last = granted.into_iter().max().unwrap_or_default().max(*since).max(healed);
            if unknown.iter().any(|((of, _), _)| of == lock) && self.now > last + self.bound {
                return Err(format!(
                    "client {} waits for {lock:?} since {since} at {}, which the log has granted to session {session}",
                    client.0, self.now
                ));
            }
        }
        self.granted_to_nobody(healed)
    }

    /// A place whose client neither has the lock nor asks for it keeps all others out.
    fn granted_to_nobody(&self, healed: Nanos) -> Result<(), String> {
        let is_asked =
            |session, lock| self.asked.values().any(|(_, who, what, _)| (*who, *what) == (session, lock));
        for ((lock, token), place) in self.places.iter().filter(|(_, place)| !place.is_known) {
            let granted = place.granted.filter(|granted| self.now > (*granted).max(healed) + self.bound);
            if let Some(granted) = granted.filter(|_| !is_asked(place.session, *lock)) {
                return Err(format!(
                    "{token} of {lock:?} was granted to session {} at {granted}, which does not ask for it at {}",
                    place.session, self.now
                ));
            }
        }
        Ok(())
    }

    fn client(&mut self, client: ClientId, what: &ClientFact) {
        match what {
            ClientFact::Invoked { call, session, op } => {
                if let Op::Acquire { lock, .. } = &**op {
                    self.asked.insert(*call, (client, *session, *lock, self.now));
                }
            }
            ClientFact::Returned { call, result } => {
                let asked = self.asked.remove(call);
                if let (Some((_, _, lock, _)), Ok(Answer::Acquired(token))) = (asked, result) {
                    self.known(lock, *token);
                }
            }
            ClientFact::Holds { lock, token, .. } => self.known(*lock, *token),
            ClientFact::Ended => self.asked.retain(|_, (who, ..)| *who != client),
            _ => {}
        }
    }

    fn known(&mut self, lock: Lock, token: FencingToken) {
        if let Some(place) = self.places.get_mut(&(lock, token)) {
            place.is_known = true;
        }
    }
}

impl Invariant for GrantInTime {
    fn name(&self) -> &'static str {
        "no-lost-wakeup"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::Queued { lock, token, session, .. } => {
                let place = Place { session: *session, granted: None, is_known: false };
                self.places.insert((*lock, *token), place);
            }
            Fact::Entitled { lock, token, .. } => {
                if let Some(place) = self.places.get_mut(&(*lock, *token)) {
                    place.granted = Some(self.now);
                }
            }
            Fact::Left { lock, token, .. } => {
                self.places.remove(&(*lock, *token));
            }
            Fact::Client { client, what, .. } => self.client(*client, what),
            Fact::Healed { at } => self.healed = Some(*at),
            Fact::Passed { .. } => {
                if let Some(healed) = self.healed {
                    return self.overdue(healed);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;

    use super::super::super::{entitled, judge, queued};
    use super::super::testing::{invoked, returned};
    use super::*;
    use crate::history::Millis;

    fn opinion(facts: &[Fact]) -> Result<(), String> {
        judge(GrantInTime::within(Duration::from_millis(100)), facts)
    }

    #[test]
    fn a_grant_to_a_session_that_does_not_ask_for_it_is_caught() {
        let healed = Fact::Healed { at: Nanos(0) };
        let granted = [healed, queued(5, 5, Mode::Exclusive, None), entitled(5, None, Millis(0))];
        let passed = [Fact::Passed { at: Nanos::from_millis(101) }];
        assert!(opinion(&[&granted[..], &passed].concat()).unwrap_err().contains("does not ask"));
        assert_eq!(opinion(&[&granted[1..], &passed].concat()), Ok(()), "faults go on");
    }

    #[test]
    fn a_granted_client_that_is_not_told_is_caught() {
        let healed = Fact::Healed { at: Nanos(0) };
        let asks = invoked(5, 1, Op::Acquire { lock: Lock(0), mode: Mode::Exclusive });
        let facts = [healed, asks, queued(5, 5, Mode::Exclusive, None)];
        let granted = entitled(5, None, Millis(0));
        let passed = Fact::Passed { at: Nanos::from_millis(101) };
        assert!(opinion(&[&facts[..], &[granted.clone(), passed.clone()]].concat()).is_err());
        assert_eq!(
            opinion(&[&facts[..], std::slice::from_ref(&passed)].concat()),
            Ok(()),
            "it is not granted"
        );
        let known = returned(5, 1, Ok(Answer::Acquired(FencingToken(5))));
        assert_eq!(opinion(&[&facts[..], &[granted.clone(), known, passed.clone()]].concat()), Ok(()));
        assert_eq!(opinion(&[&facts[1..], &[granted, passed]].concat()), Ok(()), "faults go on");
    }
}
