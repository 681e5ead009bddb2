//! The leader's record of signs of life, and its decision to expire. Never in the log, lost with the leader.
//!
//! Invariant: once an expiry is decided, no ping of that session is confirmed any more. A client that got a
//! confirmation believes in its session for a whole timeout, and the decision cannot be taken back.

use std::collections::BTreeMap;

use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;

use crate::history::Millis;
use crate::state::mutant::Mutant;

struct Tracked {
    touched: Millis,
    timeout_ms: u32,
    attachment: Attachment,
    decided: bool,
}

/// Whom the leader heard of, when.
#[derive(Default)]
pub struct Leader {
    sessions: BTreeMap<SessionId, Tracked>,
    mutant: Option<Mutant>,
}

impl Leader {
    /// With a mistake, if any.
    pub fn new(mutant: Option<Mutant>) -> Self {
        Leader { sessions: BTreeMap::new(), mutant }
    }

    /// The log opened or attached a session.
    pub fn track(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32, now: Millis) {
        self.sessions.insert(session, Tracked { touched: now, timeout_ms, attachment, decided: false });
    }

    /// The log ended a session.
    pub fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// A sign of life. False: it must not be confirmed.
    pub fn touch(&mut self, session: SessionId, now: Millis) -> bool {
        let careless = self.mutant == Some(Mutant::ConfirmAfterDecision);
        match self.sessions.get_mut(&session) {
            Some(tracked) if !tracked.decided => {
                tracked.touched = now;
                true
            }
            Some(_) => careless,
            None => self.mutant == Some(Mutant::ConfirmTheDead),
        }
    }

    /// A new leader: it knows no signs of life, so every session gets its whole timeout.
    pub fn change(&mut self, now: Millis) {
        for tracked in self.sessions.values_mut() {
            (tracked.touched, tracked.decided) = (now, false);
        }
    }

    /// The sessions whose time is over now.
    pub fn decide(&mut self, now: Millis) -> Vec<(SessionId, Attachment)> {
        let early = self.mutant == Some(Mutant::ExpireEarly);
        let mut over = Vec::new();
        for (session, tracked) in &mut self.sessions {
            let timeout_ms = i64::from(tracked.timeout_ms) * if early { 3 } else { 4 } / 4;
            if !tracked.decided && now.0 >= tracked.touched.0 + timeout_ms {
                tracked.decided = true;
                over.push((*session, tracked.attachment));
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(5);

    #[test]
    fn a_touch_moves_the_deadline_and_a_decision_stands() {
        let mut leader = Leader::default();
        leader.track(SESSION, Attachment(1), 100, Millis(0));
        assert!(leader.touch(SESSION, Millis(60)));
        assert_eq!(leader.decide(Millis(159)), []);
        assert_eq!(leader.decide(Millis(160)), [(SESSION, Attachment(1))]);
        assert!(!leader.touch(SESSION, Millis(161)), "the decision may be in the log already");
        assert_eq!(leader.decide(Millis(400)), [], "decided once");
    }

    #[test]
    fn a_new_leader_gives_everybody_the_whole_timeout() {
        let mut leader = Leader::default();
        leader.track(SESSION, Attachment(1), 100, Millis(0));
        leader.change(Millis(90));
        assert_eq!(leader.decide(Millis(189)), []);
        assert_eq!(leader.decide(Millis(190)).len(), 1);
    }
}
