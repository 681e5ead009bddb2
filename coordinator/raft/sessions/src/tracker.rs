//! When each session was last heard of: the leader's pure book-keeping for expiry.
//!
//! Invariant: a session whose expiry has been decided stays decided: no later touch revives it, and none is
//! confirmed, for its lock may be granted to the next at any moment. Invariant: no session is due before its
//! timeout has passed since its last touch (or since this leader's start, when every session gets its full
//! timeout again; Chubby, section 2.9), unless its client has hung up and had asked that this shortens its
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::Instant;
use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;
use rowlock_types::client_disconnect::ClientDisconnect;
use rowlock_types::limits::DISCONNECTS_EARLY_MAX;

/// A session's timer. There is one for each session of the cluster, so what few sessions have is kept apart.
struct SessionTimer {
    last_touch: Instant,
    /// Where the session stands in `agenda`; never later than its true deadline.
    look_at: Instant,
    attachment: Attachment,
    timeout_ms: u32,
    /// It was due. Only a new attachment, which goes through the log, takes that back.
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

/// All sessions of the cluster, on the leader.
///
/// Invariant: `disconnected` mentions only sessions that are in `sessions`.
#[derive(Default)]
pub struct Tracker {
    sessions: BTreeMap<SessionId, SessionTimer>,
    /// When to look at whom. A touch does not move a session here; looking too early only moves it on.
    agenda: BTreeSet<(Instant, SessionId)>,
    /// Sessions whose client has hung up and not attached again: their time ends here, if not before.
    disconnected: BTreeMap<SessionId, Instant>,
    /// Whose client has hung up a connection of which this node has not heard yet: the log is on its way, and
    /// another node was faster. At most [`DISCONNECTS_EARLY_MAX`]: those of sessions that have ended stay.
    early: BTreeMap<SessionId, ClientDisconnect>,
}

/// How long until a proposed expiry that did not take effect is proposed again.
const RETRY: Duration = Duration::from_secs(1);

impl Tracker {
    /// A new leader's tracker: every session has its full timeout from `now`, in milliseconds.
    pub fn start(now: Instant, sessions: impl Iterator<Item = (SessionId, Attachment, u32)>) -> Self {
        let mut tracker = Tracker::default();
        for (session, attachment, timeout_ms) in sessions {
            tracker.opened(now, session, attachment, timeout_ms);
        }
        tracker
    }

    /// A session was opened or attached again: it is alive now, with this timeout.
    pub fn opened(&mut self, now: Instant, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        let early = self.early.remove(&session);
        self.ended(session);
        let mut entry =
            SessionTimer { last_touch: now, look_at: now, attachment, timeout_ms, decided: false };
        entry.look_at = entry.silent_until();
        self.agenda.insert((entry.look_at, session));
        self.sessions.insert(session, entry);
        if let Some(disconnect) = early {
            self.client_disconnected(now, &disconnect);
        }
    }

    pub fn ended(&mut self, session: SessionId) {
        if let Some(entry) = self.sessions.remove(&session) {
            self.agenda.remove(&(entry.look_at, session));
            self.disconnected.remove(&session);
            self.early.remove(&session);
        }
    }

    /// A frame of this session came in somewhere. It does not take a hang-up back: it can only have been on
    /// its way since before, perhaps from another node that the session has left.
    pub fn touch(&mut self, now: Instant, session: SessionId) {
        match self.sessions.get_mut(&session) {
            Some(entry) if entry.decided => rare::taken(Rare::TouchTooLate),
            Some(entry) => entry.last_touch = entry.last_touch.max(now),
            None => {}
        }
    }

    /// Whether the session's timer runs: not if it is unknown or its expiry is decided. A heartbeat must not
    /// be answered then.
    pub fn runs(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|entry| !entry.decided)
    }

    /// The client of a session hung up: the session is due after the grace that it had asked for, unless it
    /// attaches again before. Without effect if it has by now.
    pub fn client_disconnected(&mut self, now: Instant, disconnect: &ClientDisconnect) {
        let known = self.sessions.get_mut(&disconnect.session);
        let Some(entry) = known.filter(|entry| entry.attachment >= disconnect.attachment) else {
            rare::taken(Rare::HungUpEarly);
            if self.early.len() == DISCONNECTS_EARLY_MAX {
                self.early.pop_first();
            }
            self.early.insert(disconnect.session, *disconnect);
            return;
        };
        if entry.decided || disconnect.attachment < entry.attachment {
            return;
        }
        rare::taken(Rare::HungUpWithGrace);
        let until = now + disconnect.grace();
        self.disconnected.insert(disconnect.session, until);
        if until < entry.look_at {
            self.agenda.remove(&(entry.look_at, disconnect.session));
            entry.look_at = until;
            self.agenda.insert((until, disconnect.session));
        }
    }

    /// Gives every session that is not yet decided upon its full timeout again: after a time in which touches
    /// could not reach this leader.
    pub fn forgive_all(&mut self, now: Instant) {
        for entry in self.sessions.values_mut() {
            entry.last_touch = entry.last_touch.max(now);
        }
        self.disconnected.clear();
    }

    /// The sessions whose time has passed. Each is due again after a second, in case its expiry gets lost.
    pub fn due(&mut self, now: Instant) -> Vec<(SessionId, Attachment)> {
        let mut due = Vec::new();
        while let Some(&(look_at, session)) = self.agenda.first() {
            if look_at > now {
                break;
            }
            self.agenda.pop_first();
            let entry = self.sessions.get_mut(&session).expect("the agenda holds only known sessions");
            let silent_until = entry.silent_until();
            let deadline =
                self.disconnected.get(&session).map_or(silent_until, |until| silent_until.min(*until));
            if entry.decided {
                rare::taken(Rare::ExpiryAgain);
            } else if deadline <= now {
                rare::taken(Rare::SessionExpired);
            }
            entry.decided |= deadline <= now;
            entry.look_at = if entry.decided {
                due.push((session, entry.attachment));
                now + RETRY
            } else {
                deadline
            };
            self.agenda.insert((entry.look_at, session));
        }
        due
    }

    /// When to call [`Tracker::due`] next.
    pub fn next_look(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// How many sessions are tracked.
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
    fn a_touch_moves_the_deadline_and_an_old_one_does_not_move_it_back() {
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
    fn an_expiry_that_got_lost_is_due_again() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        assert_eq!(tracker.due(t0 + ms(4000)), [(S, A)]);
        assert_eq!(tracker.due(t0 + ms(4500)), []);
        assert_eq!(tracker.due(t0 + ms(5000)), [(S, A)]);
        tracker.ended(S);
        assert_eq!(tracker.due(t0 + ms(60_000)), []);
        assert_eq!(tracker.next_look(), None);
    }

    #[test]
    fn no_touch_revives_a_session_whose_expiry_is_decided_but_a_new_attachment_does() {
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
    fn attaching_anew_gives_a_full_timeout_and_the_new_attachment() {
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
    fn a_session_whose_client_hung_up_is_due_after_the_grace_that_it_asked_for() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.touch(t0 + ms(1000), S);
        tracker.client_disconnected(t0 + ms(1000), &disconnect(A));
        assert_eq!(tracker.next_look(), Some(t0 + ms(1300)));
        assert_eq!(tracker.due(t0 + ms(1299)), []);
        assert_eq!(tracker.due(t0 + ms(1300)), [(S, A)]);
        tracker.touch(t0 + ms(1301), S);
        assert!(!tracker.runs(S));
    }

    #[test]
    fn a_hang_up_never_prolongs_a_session() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0 + ms(3900), &disconnect(A));
        assert_eq!(tracker.due(t0 + ms(4000)), [(S, A)]);
    }

    #[test]
    fn whoever_comes_back_within_the_grace_has_the_whole_timeout_again() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0, &disconnect(A));
        tracker.opened(t0 + ms(200), S, Attachment(2), 4000);
        assert_eq!(tracker.due(t0 + ms(4199)), []);
        assert_eq!(tracker.due(t0 + ms(4200)), [(S, Attachment(2))]);
    }

    #[test]
    fn a_sign_of_life_that_was_on_its_way_takes_no_hang_up_back() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.client_disconnected(t0, &disconnect(A));
        tracker.touch(t0 + ms(200), S);
        assert!(tracker.runs(S));
        assert_eq!(tracker.due(t0 + ms(299)), []);
        assert_eq!(tracker.due(t0 + ms(300)), [(S, A)]);
    }

    #[test]
    fn a_hang_up_that_comes_before_the_log_has_brought_its_connection_counts_when_it_has() {
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
    fn a_hang_up_that_comes_before_the_log_has_brought_the_session_counts_when_it_has() {
        let t0 = Instant::now();
        let mut tracker = Tracker::default();
        tracker.client_disconnected(t0, &disconnect(A));
        assert!(tracker.is_empty() && !tracker.runs(S));
        tracker.opened(t0 + ms(10), S, A, 4000);
        assert_eq!(tracker.due(t0 + ms(309)), []);
        assert_eq!(tracker.due(t0 + ms(310)), [(S, A)]);
    }

    #[test]
    fn hang_ups_of_sessions_that_never_come_take_bounded_room() {
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
    fn the_hang_up_of_a_connection_that_the_session_has_left_counts_for_nothing() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.opened(t0, S, Attachment(2), 4000);
        tracker.client_disconnected(t0 + ms(100), &disconnect(A));
        tracker
            .client_disconnected(t0 + ms(100), &ClientDisconnect { session: SessionId(8), ..disconnect(A) });
        assert_eq!(tracker.due(t0 + ms(3999)), []);
    }

    #[test]
    fn forgiveness_takes_hang_ups_back_and_a_decided_session_stays_decided() {
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
    fn forgiveness_gives_everybody_a_full_timeout() {
        let t0 = Instant::now();
        let mut tracker = tracker(t0);
        tracker.forgive_all(t0 + ms(99_500));
        assert_eq!(tracker.due(t0 + ms(103_499)), []);
        assert_eq!(tracker.due(t0 + ms(103_500)), [(S, A)]);
    }
}
