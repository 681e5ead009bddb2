//! Last contact of each session: the leader's pure bookkeeping for expiry.
//!
//! Invariant: an expiry decision is final: no later touch revives the session, and the leader confirms no
//! later touch, since the session's lock may pass to the next waiter at any moment. Invariant: no session is
//! due before its timeout has passed since its last touch (or since this leader's start, when every session
//! gets its full timeout again; Chubby, section 2.9), unless the client disconnected and had requested a
//! shorter expiry for this case.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_consensus::limits::DISCONNECTS_EARLY_MAX;
use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::Instant;
use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;

/// Timer of one session. Every session of the cluster has a timer, so rare data lives in other maps.
struct SessionTimer {
    last_touch: Instant,
    /// Position of the session in `agenda`; never later than the true deadline.
    check_at: Instant,
    attachment: Attachment,
    timeout_ms: u32,
    /// The session was due. Only a new attachment, which goes through the log, resets this flag.
    decided: bool,
}

impl SessionTimer {
    fn silent_until(&self) -> Instant {
        let timeout = Duration::from_millis(u64::from(self.timeout_ms));
        let early = match () {
            () if mutant::is(Mutant::ExpireEarly) => timeout / 2,
            () if mutant::is(Mutant::ExpireATickEarly) => Duration::from_millis(50),
            () => Duration::ZERO,
        };
        self.last_touch + (timeout - early)
    }
}

/// Timers of all sessions of the cluster, on the leader.
///
/// Invariant: `disconnected` mentions only sessions that are in `sessions`.
#[derive(Default)]
pub struct Tracker {
    sessions: BTreeMap<SessionId, SessionTimer>,
    /// Sessions by the time of their next check. A touch leaves the entry in place; a check that comes too
    /// early moves the entry on.
    agenda: BTreeSet<(Instant, SessionId)>,
    /// Sessions whose client disconnected and did not attach again, with the time of their end, if not
    /// earlier.
    disconnected: BTreeMap<SessionId, Instant>,
    /// Disconnects of attachments that this node has not applied yet: the log entry is in flight, and another
    /// node applied the attachment earlier. At most [`DISCONNECTS_EARLY_MAX`] entries, since entries of ended
    /// sessions remain.
    early: BTreeMap<SessionId, ClientDisconnect>,
}

/// Pause until an expiry without effect is proposed again.
const RETRY: Duration = Duration::from_secs(1);

impl Tracker {
    /// Creates a new leader's tracker: every session has its full timeout, in milliseconds, from `now`.
    pub fn start(now: Instant, sessions: impl Iterator<Item = (SessionId, Attachment, u32)>) -> Self {
        let mut tracker = Tracker::default();
        for (session, attachment, timeout_ms) in sessions {
            tracker.opened(now, session, attachment, timeout_ms);
        }
        tracker
    }

    /// Starts the timer of a session that was opened or attached again.
    pub fn opened(&mut self, now: Instant, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        let early = self.early.remove(&session);
        self.ended(session);
        let mut entry =
            SessionTimer { last_touch: now, check_at: now, attachment, timeout_ms, decided: false };
        entry.check_at = entry.silent_until();
        self.agenda.insert((entry.check_at, session));
        self.sessions.insert(session, entry);
        if let Some(disconnect) = early {
            self.client_disconnected(now, &disconnect);
        }
    }

    pub fn ended(&mut self, session: SessionId) {
        if let Some(entry) = self.sessions.remove(&session) {
            self.agenda.remove(&(entry.check_at, session));
            self.disconnected.remove(&session);
            self.early.remove(&session);
        }
    }

    /// Restarts the timer after a frame of this session. A disconnect stays in force: the frame was sent
    /// before the disconnect, perhaps through another node that the session has left.
    pub fn touch(&mut self, now: Instant, session: SessionId) {
        match self.sessions.get_mut(&session) {
            Some(entry) if entry.decided => rare::taken(Rare::TouchTooLate),
            Some(entry) => entry.last_touch = entry.last_touch.max(now),
            None => {}
        }
    }

    /// Returns whether the session's timer runs. Unknown sessions and sessions with a decided expiry have no
    /// running timer, and the leader must not answer their heartbeats.
    pub fn runs(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|entry| decides!("session-runs", !entry.decided))
    }

    /// Makes a session due after the grace that its client had requested, unless the client attaches again in
    /// time. Without effect if the client already attached again.
    pub fn client_disconnected(&mut self, now: Instant, disconnect: &ClientDisconnect) {
        let known = self.sessions.get_mut(&disconnect.session);
        let Some(entry) = known.filter(|entry| {
            decides!("disconnect-is-of-known-attachment", entry.attachment >= disconnect.attachment)
        }) else {
            rare::taken(Rare::HungUpEarly);
            if self.early.len() == DISCONNECTS_EARLY_MAX {
                self.early.pop_first();
            }
            self.early.insert(disconnect.session, *disconnect);
            return;
        };
        if decides!("disconnect-is-too-late", entry.decided || disconnect.attachment < entry.attachment) {
            return;
        }
        rare::taken(Rare::HungUpWithGrace);
        let until = now + disconnect.grace();
        self.disconnected.insert(disconnect.session, until);
        if decides!("disconnect-grace-ends-sooner", until < entry.check_at) {
            self.agenda.remove(&(entry.check_at, disconnect.session));
            entry.check_at = until;
            self.agenda.insert((until, disconnect.session));
        }
    }

    /// Restarts every timer that has not run out with its full timeout, after a time in which touches could
    /// not reach this leader.
    pub fn forgive_all(&mut self, now: Instant) {
        for entry in self.sessions.values_mut() {
            entry.last_touch = entry.last_touch.max(now);
        }
        self.disconnected.clear();
    }

    /// Returns the sessions whose timers ran out. Each is due again after a second, in case its expiry
    /// proposal is lost.
    pub fn due(&mut self, now: Instant) -> Vec<(SessionId, Attachment)> {
        let mut due = Vec::new();
        while let Some(&(check_at, session)) = self.agenda.first() {
            if decides!("no-session-is-due", check_at > now) {
                break;
            }
            self.agenda.pop_first();
            let entry = self.sessions.get_mut(&session).expect("the agenda holds only known sessions");
            let silent_until = entry.silent_until();
            let deadline =
                self.disconnected.get(&session).map_or(silent_until, |until| silent_until.min(*until));
            let is_over = decides!("session-is-over", deadline <= now);
            if entry.decided {
                rare::taken(Rare::ExpiryAgain);
            } else if is_over {
                rare::taken(Rare::SessionExpired);
            }
            entry.decided |= is_over;
            entry.check_at = if entry.decided {
                due.push((session, entry.attachment));
                now + RETRY
            } else {
                deadline
            };
            self.agenda.insert((entry.check_at, session));
        }
        due
    }

    /// Returns the time of the next useful call of [`Tracker::due`].
    pub fn next_check(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId(7);
    const A: Attachment = Attachment(1);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn tracker(now: Instant) -> Tracker {
        Tracker::start(now, [(S, A, 4000)].into_iter())
    }

    #[test]
    fn a_silent_session_is_due_after_its_timeout_and_not_before() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        assert_eq!(tracker.due(t0 + ms(3999)), []);
        assert_eq!(tracker.due(t0 + ms(4000)), [(S, A)]);
    }

    #[test]
    fn only_newer_touches_move_the_deadline() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.touch(t0 + ms(3000), S);
        assert!(tracker.runs(S));
        tracker.touch(t0 + ms(1000), S);
        assert!(tracker.runs(S));
        assert_eq!(tracker.due(t0 + ms(6999)), []);
        assert_eq!(tracker.due(t0 + ms(7000)), [(S, A)]);
        tracker.touch(t0, SessionId(8));
        assert!(!tracker.runs(SessionId(8)));
    }

    #[test]
    fn a_lost_expiry_is_due_again() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        assert_eq!(tracker.due(t0 + ms(4000)), [(S, A)]);
        assert_eq!(tracker.due(t0 + ms(4500)), []);
        assert_eq!(tracker.due(t0 + ms(5000)), [(S, A)]);
        tracker.ended(S);
        assert_eq!(tracker.due(t0 + ms(60_000)), []);
        assert_eq!(tracker.next_check(), None);
    }

    #[test]
    fn only_a_new_attachment_revives_a_session_with_decided_expiry() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        assert_eq!(tracker.due(t0 + ms(4000)), [(S, A)]);
        tracker.touch(t0 + ms(4001), S);
        assert!(!tracker.runs(S));
        tracker.forgive_all(t0 + ms(4002));
        tracker.touch(t0 + ms(4003), S);
        assert!(!tracker.runs(S));
        assert_eq!(tracker.due(t0 + ms(5000)), [(S, A)]);
        tracker.opened(t0 + ms(5100), S, Attachment(2), 4000);
        tracker.touch(t0 + ms(5101), S);
        assert!(tracker.runs(S));
        assert_eq!(tracker.due(t0 + ms(8500)), []);
    }

    #[test]
    fn attaching_again_restarts_the_full_timeout() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.opened(t0 + ms(4000), S, Attachment(2), 6000);
        assert_eq!(tracker.due(t0 + ms(9999)), []);
        assert_eq!(tracker.due(t0 + ms(10_000)), [(S, Attachment(2))]);
        assert_eq!(tracker.len(), 1);
    }

    fn disconnect(attachment: Attachment) -> ClientDisconnect {
        ClientDisconnect { session: S, attachment, grace_ms: 300 }
    }

    #[test]
    fn a_disconnected_session_is_due_after_its_grace() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.touch(t0 + ms(1000), S);
        tracker.client_disconnected(t0 + ms(1000), &disconnect(A));
        assert_eq!(tracker.next_check(), Some(t0 + ms(1300)));
        assert_eq!(tracker.due(t0 + ms(1299)), []);
        assert_eq!(tracker.due(t0 + ms(1300)), [(S, A)]);
        tracker.touch(t0 + ms(1301), S);
        assert!(!tracker.runs(S));
    }

    #[test]
    fn a_disconnect_never_prolongs_a_session() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0 + ms(3900), &disconnect(A));
        assert_eq!(tracker.due(t0 + ms(4000)), [(S, A)]);
    }

    #[test]
    fn a_reconnect_within_the_grace_restores_the_whole_timeout() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0, &disconnect(A));
        tracker.opened(t0 + ms(200), S, Attachment(2), 4000);
        assert_eq!(tracker.due(t0 + ms(4199)), []);
        assert_eq!(tracker.due(t0 + ms(4200)), [(S, Attachment(2))]);
    }

    #[test]
    fn a_late_touch_does_not_cancel_a_disconnect() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0, &disconnect(A));
        tracker.touch(t0 + ms(200), S);
        assert!(tracker.runs(S));
        assert_eq!(tracker.due(t0 + ms(299)), []);
        assert_eq!(tracker.due(t0 + ms(300)), [(S, A)]);
    }

    #[test]
    fn an_early_disconnect_takes_effect_once_its_attachment_applies() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0, &disconnect(Attachment(3)));
        tracker.opened(t0 + ms(10), S, Attachment(3), 4000);
        assert_eq!(tracker.due(t0 + ms(309)), []);
        assert_eq!(tracker.due(t0 + ms(310)), [(S, Attachment(3))]);
        tracker.client_disconnected(t0 + ms(320), &disconnect(Attachment(4)));
        tracker.opened(t0 + ms(330), S, Attachment(5), 4000);
        assert_eq!(tracker.due(t0 + ms(4000)), []);
    }

    #[test]
    fn an_early_disconnect_takes_effect_once_its_session_applies() {
        let t0 = Instant::now();
        let mut tracker = Tracker::default();
        tracker.client_disconnected(t0, &disconnect(A));
        assert!(tracker.is_empty() && !tracker.runs(S));
        tracker.opened(t0 + ms(10), S, A, 4000);
        assert_eq!(tracker.due(t0 + ms(309)), []);
        assert_eq!(tracker.due(t0 + ms(310)), [(S, A)]);
    }

    #[test]
    fn early_disconnects_of_unknown_sessions_are_bounded() {
        let mut tracker = Tracker::default();
        for session in 0..DISCONNECTS_EARLY_MAX as i64 + 10 {
            tracker.client_disconnected(
                Instant::now(),
                &ClientDisconnect { session: SessionId(session), ..disconnect(A) },
            );
        }
        assert_eq!(tracker.early.len(), DISCONNECTS_EARLY_MAX);
    }

    #[test]
    fn the_disconnect_of_an_earlier_connection_has_no_effect() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.opened(t0, S, Attachment(2), 4000);
        tracker.client_disconnected(t0 + ms(100), &disconnect(A));
        tracker
            .client_disconnected(t0 + ms(100), &ClientDisconnect { session: SessionId(8), ..disconnect(A) });
        assert_eq!(tracker.due(t0 + ms(3999)), []);
    }

    #[test]
    fn forgiveness_cancels_disconnects_but_no_decided_expiry() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0, &disconnect(A));
        tracker.forgive_all(t0 + ms(100));
        assert_eq!(tracker.due(t0 + ms(4099)), []);
        assert_eq!(tracker.due(t0 + ms(4100)), [(S, A)]);
        tracker.client_disconnected(t0 + ms(4200), &disconnect(A));
        assert_eq!(tracker.due(t0 + ms(4500)), []);
        assert_eq!(tracker.due(t0 + ms(5100)), [(S, A)]);
    }

    #[test]
    fn forgiveness_restarts_every_full_timeout() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.forgive_all(t0 + ms(99_500));
        assert_eq!(tracker.due(t0 + ms(103_499)), []);
        assert_eq!(tracker.due(t0 + ms(103_500)), [(S, A)]);
    }
}
