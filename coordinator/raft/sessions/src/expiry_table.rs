//! The leader's table of session timers: a [`Tracker`] behind a mutex, present only while this node leads.
//!
//! Apply reports opened and ended sessions here, the nodes report touches, and the liveness task takes the
//! due sessions. Invariant: the replica's `state` lock is taken before this mutex, and no await holds this
//! mutex.
//!
//! Restarts session timers on the leader, and waits until a quorum acknowledges the leadership.
//!
//! Invariant: the leader confirms a touch only after a quorum acknowledged a request which this leader sent,
//! in the same term, after the timer restarted. A later leader was therefore elected after the restart and
//! starts with the full timeout. A client computes its deadline from the send time of a confirmed heartbeat,
//! so the client gives up before any leader, old or new, expires the session. No lease takes part, and no
//! clock except the rate of the expiring leader's clock (docs/decisions/heartbeats.md).
//!
//! Time of this node's last contact to a quorum.
//!
//! The leader learns the time from Raft; a follower learns the time from the leader's answers to reports, and
//! the leader answers only while in contact. A node without contact answers no heartbeat, expires no session
//! and serves no new client.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::node_hook::Hook;
use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_consensus::raft::{QuorumContact, Raft, facts};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_state::Machine;
use rowlock_state::command::Attachment;
use tokio::sync::Notify;

use super::tracker::Tracker;

/// Session timers of the term in which this node leads. Empty on a follower.
#[derive(Default)]
pub struct ExpiryTable {
    tracker: Mutex<Option<(u64, Tracker)>>,
    /// Notified when a session may be due earlier than before.
    earlier: Notify,
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
            disconnects.iter().for_each(|disconnect| tracker.client_disconnected(now, disconnect));
            self.earlier.notify_one();
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

    /// Waits until a session may be due earlier than [`ExpiryTable::next_check`] returned before.
    pub async fn due_earlier(&self) {
        self.earlier.notified().await;
    }

    /// Returns the time of the next useful call of [`ExpiryTable::due`].
    pub fn next_check(&self) -> Option<Instant> {
        self.tracker.lock().as_ref()?.1.next_check()
    }

    /// Returns the sessions to expire now, with the term of the timers.
    pub fn due(&self, now: Instant) -> Option<(u64, Vec<(SessionId, Attachment)>)> {
        self.tracker.lock().as_mut().map(|(term, tracker)| (*term, tracker.due(now)))
    }
}

/// Delay before the leader sends an extra heartbeat to the quorum: under load the acknowledgement of the next
/// log entry arrives earlier.
const CONTACT_AFTER: Duration = Duration::from_millis(5);
/// Shortest pause between two extra heartbeats to the quorum.
const CONTACT_EVERY: Duration = Duration::from_millis(20);
/// Greatest age of the quorum contact with which the leader answers a report without sessions.
const CONTACT_FRESH: Duration = time::BEAT.saturating_mul(2);

/// Reason why the leader does not confirm a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unconfirmed {
    /// This node does not lead the term, or no longer does.
    NotLeader,
    /// No quorum acknowledged this leader before the deadline.
    NoQuorum,
}

/// Confirms touches for the connections of this node and of the other nodes.
pub struct HeartbeatAcks {
    raft: Raft,
    quorum: QuorumContact,
    expiry_table: Arc<ExpiryTable>,
    contact: Arc<LastContact>,
    hook: Hook,
    contacted: Mutex<Option<Instant>>,
}

impl HeartbeatAcks {
    /// Creates the leader's side of touches; `contact` is this node's own record of quorum contact.
    pub fn new(
        raft: Raft,
        quorum: QuorumContact,
        expiry_table: Arc<ExpiryTable>,
        contact: Arc<LastContact>,
        hook: Hook,
    ) -> Self {
        HeartbeatAcks { raft, quorum, expiry_table, contact, hook, contacted: Mutex::new(None) }
    }

    /// Restarts the timers of `sessions` at the first poll, and waits for at most `patience` until a quorum
    /// acknowledges this leader after the restart. Returns the sessions whose timers do not run at the end.
    ///
    /// # Errors
    /// [`Unconfirmed`]: the caller must not confirm the sessions; timers may have restarted.
    /// # Cancel safety
    /// Timers may have restarted, which does no harm.
    pub async fn touch(
        &self,
        term: u64,
        sessions: Vec<SessionId>,
        patience: Duration,
    ) -> Result<Vec<SessionId>, Unconfirmed> {
        let touched = time::now();
        // A report without sessions only refreshes the follower's contact, and need not wait for the next
        // heartbeat.
        let age = if sessions.is_empty() { CONTACT_FRESH } else { Duration::ZERO };
        if decides!("keepalive-is-of-other-term", !self.expiry_table.touch(term, &sessions)) {
            return Err(Unconfirmed::NotLeader);
        }
        let mut heard = self.quorum.heard();
        let contact = loop {
            if let Some(at) = self.acknowledged_since(touched, age, term) {
                break at;
            }
            let waited = touched.elapsed();
            if decides!("keepalive-waits-too-long", waited >= patience) {
                return Err(Unconfirmed::NoQuorum);
            }
            if !sessions.is_empty() && waited >= CONTACT_AFTER {
                self.contact_quorum().await;
            }
            let wake_at = touched
                + if waited < CONTACT_AFTER { CONTACT_AFTER } else { waited + CONTACT_EVERY }.min(patience);
            // Without an answer until then, check again: the node may have lost the leadership.
            let _ = time::timeout_at(wake_at, heard.changed()).await;
            if decides!("keepalive-term-has-ended", self.expiry_table.term() != Some(term)) {
                return Err(Unconfirmed::NotLeader);
            }
        };
        let stopped = self.expiry_table.stopped(term, &sessions).ok_or(Unconfirmed::NotLeader)?;
        self.hook.notify(|hook| {
            let running: Vec<_> = sessions.into_iter().filter(|it| !stopped.contains(it)).collect();
            hook.confirms(term, contact.elapsed(), touched.elapsed(), &running);
        });
        Ok(stopped)
    }

    /// Records at once that these clients disconnected. Returns false if this node does not lead `term`.
    pub fn client_disconnected(&self, term: u64, disconnects: &[ClientDisconnect]) -> bool {
        self.expiry_table.client_disconnected(term, disconnects)
    }

    /// Returns the time when a quorum last acknowledged this leader of `term`, unless older than `moment`
    /// minus `age`.
    fn acknowledged_since(&self, moment: Instant, age: Duration, term: u64) -> Option<Instant> {
        let (leads, at) = self.quorum.last()?;
        self.contact.mark(at);
        let is_recent = decides!("quorum-contact-is-recent", at + age >= moment)
            || mutant::is(Mutant::ServeWithoutQuorum);
        decides!("keepalive-is-confirmed", leads == term && is_recent).then_some(at)
    }

    async fn contact_quorum(&self) {
        let is_time = {
            let mut contacted = self.contacted.lock();
            let is_time = contacted.is_none_or(|at| at.elapsed() >= CONTACT_EVERY);
            if is_time {
                *contacted = Some(time::now());
            }
            is_time
        };
        if is_time {
            facts::contact_quorum(&self.raft).await;
        }
    }
}

#[derive(Debug, Default)]
pub struct LastContact {
    last: Mutex<Option<Instant>>,
}

impl LastContact {
    /// Records contact at `at`. The recorded time never moves back.
    pub fn mark(&self, at: Instant) {
        let mut last = self.last.lock();
        *last = (*last).max(Some(at));
    }

    /// Returns the time since the last contact; `None` before the first.
    pub fn age(&self) -> Option<Duration> {
        self.last.lock().map(|at| time::now().saturating_since(at))
    }

    pub fn within(&self, age: Duration) -> bool {
        let age = if mutant::is(Mutant::ServeWithoutQuorum) { Duration::MAX } else { age };
        self.last
            .lock()
            .is_some_and(|at| decides!("leader-contact-is-recent", time::now().saturating_since(at) <= age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_ages_and_never_moves_back() {
        let contact = LastContact::default();
        assert!(!contact.within(Duration::from_secs(1000)));
        let now = Instant::now();
        contact.mark(now - Duration::from_secs(10));
        assert!(!contact.within(Duration::from_secs(5)));
        contact.mark(now);
        contact.mark(now - Duration::from_secs(10));
        assert!(contact.within(Duration::from_secs(5)));
    }
}
