//! The leader's table of session timers: a [`Tracker`] behind a mutex, present only while this node leads.
//!
//! Apply reports opened and ended sessions here, the nodes report touches, and the liveness task takes the
//! due sessions. Invariant: the replica's `state` lock is taken before this mutex, and no await holds this
//! mutex.

use parking_lot::Mutex;
use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_state::Machine;
use rowlock_state::command::Attachment;

use super::tracker::Tracker;

/// Session timers of the term in which this node leads. Empty on a follower.
#[derive(Default)]
pub struct ExpiryTable {
    tracker: Mutex<Option<(u64, Tracker)>>,
}

impl ExpiryTable {
    /// Starts the timer of every session with the full timeout, for `term`. The caller holds the state's read
    /// lock, so no session opens in between.
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

    /// Stops all timers: this node no longer leads.
    pub fn give_up(&self) {
        if mutant::is(Mutant::KeepOldDeadlines) {
            return;
        }
        *self.tracker.lock() = None;
    }

    /// Returns the term in which this node runs the timers.
    pub fn term(&self) -> Option<u64> {
        self.tracker.lock().as_ref().map(|(term, _)| *term)
    }

    /// Starts the timer of a session that was opened or attached again.
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

    /// Restarts the timers of these sessions. Returns false if this node does not lead `term`.
    pub fn touch(&self, term: u64, sessions: &[SessionId]) -> bool {
        let now = time::now();
        self.in_term(term, |tracker| sessions.iter().for_each(|session| tracker.touch(now, *session)))
            .is_some()
    }

    /// Returns the sessions among `sessions` whose timers do not run: the leader leaves their heartbeats
    /// unanswered. Returns `None` if this node does not lead `term`.
    pub fn stopped(&self, term: u64, sessions: &[SessionId]) -> Option<Vec<SessionId>> {
        self.in_term(term, |tracker| sessions.iter().copied().filter(|it| !tracker.runs(*it)).collect())
    }

    /// Records that the clients of these sessions disconnected. Returns false if this node does not lead
    /// `term`.
    pub fn client_disconnected(&self, term: u64, disconnects: &[ClientDisconnect]) -> bool {
        let now = time::now();
        self.in_term(term, |tracker| {
            disconnects.iter().for_each(|disconnect| tracker.client_disconnected(now, disconnect))
        })
        .is_some()
    }

    fn in_term<T>(&self, term: u64, act: impl FnOnce(&mut Tracker) -> T) -> Option<T> {
        let mut tracker = self.tracker.lock();
        tracker
            .as_mut()
            .filter(|(own, _)| decides!("expiry-is-of-this-term", *own == term))
            .map(|(_, tracker)| act(tracker))
    }

    /// Restarts every timer with the session's full timeout.
    pub fn forgive_all(&self, now: Instant) {
        if let Some((_, tracker)) = self.tracker.lock().as_mut() {
            tracker.forgive_all(now);
        }
    }

    /// Returns the sessions to expire now, with the term of the timers.
    pub fn due(&self, now: Instant) -> Option<(u64, Vec<(SessionId, Attachment)>)> {
        self.tracker.lock().as_mut().map(|(term, tracker)| (*term, tracker.due(now)))
    }
}
