//! The leader's charge of all sessions: the tracker behind a lock, there only while this node leads.
//!
//! Apply tells it of sessions that open and end, the peers' touches come straight here, and the liveness task asks it
//! who is due. Invariant: lock order is the replica's `state` before this; it is never held across an await.

use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_state::Machine;
use rowlock_state::command::Attachment;

use super::Departure;
use super::tracker::Tracker;

/// Empty on a follower.
pub struct Charge {
    grace: Duration,
    tracker: Mutex<Option<(u64, Tracker)>>,
}

impl Charge {
    /// Not in charge. `grace`: see [`Tracker`].
    pub fn new(grace: Duration) -> Self {
        Charge { grace, tracker: Mutex::new(None) }
    }

    /// This node leads `term` now: every session has its full timeout from here on. Called under the state's read lock,
    /// so that no session opens in between.
    pub fn take(&self, term: u64, machine: &Machine) {
        if mutant::is(Mutant::KeepOldDeadlines)
            && let Some((old, _)) = self.tracker.lock().as_mut()
        {
            *old = term;
            return;
        }
        let sessions = machine.sessions().map(|(id, s)| (id, s.attachment, ms(s.timeout_ms)));
        *self.tracker.lock() = Some((term, Tracker::start(time::now(), self.grace, sessions)));
    }

    /// This node does not lead (any more).
    pub fn give_up(&self) {
        if mutant::is(Mutant::KeepOldDeadlines) {
            return;
        }
        *self.tracker.lock() = None;
    }

    /// The term that this node is in charge of.
    pub fn term(&self) -> Option<u64> {
        self.tracker.lock().as_ref().map(|(term, _)| *term)
    }

    /// A session was opened or attached anew.
    pub fn opened(&self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        if let Some((_, tracker)) = self.tracker.lock().as_mut() {
            tracker.opened(time::now(), session, attachment, ms(timeout_ms));
        }
    }

    /// A session ended.
    pub fn ended(&self, session: SessionId) {
        if let Some((_, tracker)) = self.tracker.lock().as_mut() {
            tracker.ended(session);
        }
    }

    /// These sessions gave a sign of life. Gives those whose timer does not run any more: their heartbeats stay
    /// unanswered. `None` if this node is not in charge.
    pub fn touch(&self, sessions: impl IntoIterator<Item = SessionId>) -> Option<Vec<SessionId>> {
        let now = time::now();
        let mut tracker = self.tracker.lock();
        let (_, tracker) = tracker.as_mut()?;
        Some(sessions.into_iter().filter(|session| !tracker.touch(now, *session)).collect())
    }

    /// These sessions' clients hung up. False if this node is not in charge.
    pub fn departed(&self, departures: &[Departure]) -> bool {
        let now = time::now();
        let mut tracker = self.tracker.lock();
        let Some((_, tracker)) = tracker.as_mut() else { return false };
        departures.iter().for_each(|departure| tracker.departed(now, departure));
        true
    }

    /// Every session gets its full timeout again.
    pub fn forgive_all(&self, now: Instant) {
        if let Some((_, tracker)) = self.tracker.lock().as_mut() {
            tracker.forgive_all(now);
        }
    }

    /// The sessions to expire now, with the term in which that was decided.
    pub fn due(&self, now: Instant) -> Option<(u64, Vec<(SessionId, Attachment)>)> {
        self.tracker.lock().as_mut().map(|(term, tracker)| (*term, tracker.due(now)))
    }
}

fn ms(timeout_ms: u32) -> Duration {
    Duration::from_millis(u64::from(timeout_ms))
}
