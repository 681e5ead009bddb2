//! The leader's table of session timers: the tracker behind a lock, which exists only while this node leads.
//!
//! Apply reports here which sessions open and end, the nodes report touches, and the liveness task asks which
//! sessions are due. Invariant: lock order is the replica's `state` before this; it is never held across an
//! await.

use parking_lot::Mutex;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_state::Machine;
use rowlock_state::command::Attachment;
use rowlock_types::client_disconnect::ClientDisconnect;

use super::tracker::Tracker;

/// Empty on a follower.
#[derive(Default)]
pub struct ExpiryTable {
    tracker: Mutex<Option<(u64, Tracker)>>,
}

impl ExpiryTable {
    /// This node leads `term` now: it starts the timer of every session, with the full timeout. Called under
    /// the state's read lock, so that no session opens in between.
    pub fn take(&self, term: u64, machine: &Machine) {
        if mutant::is(Mutant::KeepOldDeadlines)
            && let Some((old, _)) = self.tracker.lock().as_mut()
        {
            *old = term;
            return;
        }
        let sessions = machine.sessions().map(|(id, s)| (id, s.attachment, s.timeout_ms));
        *self.tracker.lock() = Some((term, Tracker::start(time::now(), sessions)));
    }

    /// This node does not lead (any more).
    pub fn give_up(&self) {
        if mutant::is(Mutant::KeepOldDeadlines) {
            return;
        }
        *self.tracker.lock() = None;
    }

    /// The term in which this node runs the timers.
    pub fn term(&self) -> Option<u64> {
        self.tracker.lock().as_ref().map(|(term, _)| *term)
    }

    /// A session was opened or attached again.
    pub fn opened(&self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        if let Some((_, tracker)) = self.tracker.lock().as_mut() {
            tracker.opened(time::now(), session, attachment, timeout_ms);
        }
    }

    pub fn ended(&self, session: SessionId) {
        if let Some((_, tracker)) = self.tracker.lock().as_mut() {
            tracker.ended(session);
        }
    }

    /// These sessions gave a sign of life. False if this node does not lead `term`.
    pub fn touch(&self, term: u64, sessions: &[SessionId]) -> bool {
        let now = time::now();
        self.in_term(term, |tracker| sessions.iter().for_each(|session| tracker.touch(now, *session)))
            .is_some()
    }

    /// Of these sessions those whose timers do not run: their heartbeats stay unanswered. `None` if this node
    /// does not lead `term`.
    pub fn stopped(&self, term: u64, sessions: &[SessionId]) -> Option<Vec<SessionId>> {
        self.in_term(term, |tracker| sessions.iter().copied().filter(|it| !tracker.runs(*it)).collect())
    }

    /// These sessions' clients hung up. False if this node does not lead `term`.
    pub fn client_disconnected(&self, term: u64, disconnects: &[ClientDisconnect]) -> bool {
        let now = time::now();
        self.in_term(term, |tracker| {
            disconnects.iter().for_each(|disconnect| tracker.client_disconnected(now, disconnect))
        })
        .is_some()
    }

    fn in_term<T>(&self, term: u64, act: impl FnOnce(&mut Tracker) -> T) -> Option<T> {
        let mut tracker = self.tracker.lock();
        tracker.as_mut().filter(|(own, _)| *own == term).map(|(_, tracker)| act(tracker))
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
