//! Choice of the next server, and of the pause before the attempt.
//!
//! A client that prefers the leader moves there from the server that names the leader, and does not move
//! again before the next connection has ended by itself: any server will do if the leader cannot be reached
//! or has no room. A client on the leader follows invitations.

use std::time::Duration;

use rowlock_env::backoff::pause_after;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rng;

use crate::limits::{BACKOFF_MAX, BACKOFF_MIN};
use crate::settings::PreferLeader;

/// Servers of a client in random order.
pub(crate) struct Servers {
    endpoints: Vec<String>,
    next: usize,
    current: usize,
    /// Attempts since the last useful connection.
    failures: usize,
    /// Policy for moving to the leader.
    prefers_leader: PreferLeader,
    /// Index of the server moved to since a connection last ended by itself.
    moved_to: Option<usize>,
}

/// Endpoints that may be the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    pub endpoints: Vec<String>,
    pub at_once: bool,
    /// Permits the move while the session only waits.
    pub when_waiting: bool,
    pub by_invitation: bool,
}

impl Servers {
    pub(crate) fn new(mut endpoints: Vec<String>, prefers_leader: PreferLeader) -> Self {
        assert!(!endpoints.is_empty(), "the configuration was checked");
        rng::shuffle(&mut endpoints);
        Servers { endpoints, next: 0, current: 0, failures: 0, prefers_leader, moved_to: None }
    }

    /// Returns the next server, and the pause before the attempt. The first lap has no pauses: clients of a
    /// failed server move on without delay. Afterwards a pause precedes each attempt, not just each lap:
    /// without a leader no server is of use, and thousands of clients that try all servers in a row take the
    /// processors that an election needs. The pause doubles per lap and has jitter against simultaneous
    /// returns. The pause leaves time to try every server twice within the time `left` of the session.
    pub(crate) fn next(&mut self, left: Option<Duration>) -> (String, Duration) {
        self.current = self.next;
        let endpoint = self.endpoints[self.current].clone();
        self.next = (self.next + 1) % self.endpoints.len();
        let laps = self.failures / self.endpoints.len();
        self.failures += 1;
        let tries = u32::try_from(2 * self.endpoints.len()).unwrap_or(u32::MAX);
        let most = left.map_or(BACKOFF_MAX, |left| (left / tries).clamp(BACKOFF_MIN, BACKOFF_MAX));
        let laps = u32::try_from(laps).unwrap_or(u32::MAX);
        (endpoint, if laps == 0 { Duration::ZERO } else { pause_after(laps, &(BACKOFF_MIN..=most)) })
    }

    pub(crate) fn current(&self) -> usize {
        self.current
    }

    pub(crate) fn count(&self) -> usize {
        self.endpoints.len()
    }

    /// Records that a server accepted the session and answered requests.
    pub(crate) fn succeeded(&mut self) {
        self.moved_to = None;
        self.accepted();
    }

    /// Records that a server accepted the session, and that the connection ended without an unanswered
    /// request.
    pub(crate) fn accepted(&mut self) {
        if !mutant::is(Mutant::PauseStays) {
            self.failures = 0;
        }
    }

    /// Endpoints to move to from the current server, if the leader is among these endpoints.
    pub(crate) fn elsewhere(&self) -> Elsewhere {
        let by_invitation = self.prefers_leader == PreferLeader::ByLoad;
        let may_move = match self.moved_to {
            None => self.prefers_leader != PreferLeader::Never,
            Some(leader) => by_invitation && leader == self.current,
        };
        if !may_move {
            return Elsewhere::default();
        }
        let others = self.endpoints.iter().enumerate().filter(|(place, _)| *place != self.current);
        let endpoints = others.map(|(_, endpoint)| endpoint.clone()).collect();
        let at_once = self.prefers_leader == PreferLeader::Always;
        Elsewhere { endpoints, at_once, when_waiting: self.moved_to.is_none(), by_invitation }
    }

    /// Makes `leader`, an endpoint of [`Servers::elsewhere`], the next server.
    pub(crate) fn move_to(&mut self, leader: &str) {
        if let Some(place) = self.endpoints.iter().position(|endpoint| endpoint == leader) {
            (self.next, self.moved_to) = (place, Some(place));
        }
    }

    /// Time limit for a server to accept a connection: short enough to try all servers within a third of the
    /// timeout.
    pub(crate) fn connect_timeout(&self, session_timeout: Duration) -> Duration {
        let servers = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        (session_timeout / 3 / servers).clamp(Duration::from_millis(100), Duration::from_secs(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lap_is_run_at_once_and_pauses_are_bounded() {
        let mut it = Servers::new(vec!["a".into(), "b".into(), "c".into()], PreferLeader::Always);
        let lap: Vec<_> = (0..3).map(|_| it.next(None)).collect();
        assert!(lap.iter().all(|(_, pause)| pause.is_zero()));
        let mut names: Vec<_> = lap.into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "c"]);
        for _ in 0..3 {
            let second_lap = it.next(None).1;
            assert!(second_lap >= BACKOFF_MIN / 2 && second_lap <= BACKOFF_MIN, "{second_lap:?}");
        }
        let longest = (0..300).map(|_| it.next(None).1).max();
        assert!(longest.is_some_and(|pause| pause <= BACKOFF_MAX && pause >= BACKOFF_MAX / 2));
        it.succeeded();
        assert!(it.next(None).1.is_zero());
    }

    #[test]
    fn an_idle_client_comes_back_at_once_however_often_its_servers_are_restarted() {
        let mut it = Servers::new(vec!["a".into(), "b".into(), "c".into()], PreferLeader::Never);
        for restart in 0..20 {
            // One server is down, the next one accepts the session and is restarted in its turn.
            assert_eq!(it.next(None).1 + it.next(None).1, Duration::ZERO, "restart {restart}");
            it.accepted();
        }
    }

    #[test]
    fn pauses_leave_time_to_try_every_server_twice_within_what_is_left_of_the_session() {
        let mut it = Servers::new(vec!["a".into(), "b".into(), "c".into()], PreferLeader::Never);
        for _ in 0..60 {
            it.next(None);
        }
        assert!(it.next(Some(Duration::from_secs(60))).1 >= BACKOFF_MAX / 2);
        let mut left = Duration::from_millis(3_600);
        for _ in 0..6 {
            let pause = it.next(Some(left)).1;
            assert!(pause >= BACKOFF_MIN / 2 && pause <= left / 6, "{pause:?} of {left:?}");
            left -= pause;
        }
        let pause = it.next(Some(Duration::ZERO)).1;
        assert!(pause >= BACKOFF_MIN / 2 && pause <= BACKOFF_MIN, "{pause:?}: no busy loop");
    }

    #[test]
    fn the_leader_is_moved_to_once_until_a_server_is_kept() {
        let mut it = Servers::new(vec!["a".into(), "b".into(), "c".into()], PreferLeader::Always);
        let (first, _) = it.next(None);
        let Elsewhere { endpoints: elsewhere, at_once: true, .. } = it.elsewhere() else { panic!() };
        assert!(elsewhere.len() == 2 && !elsewhere.contains(&first));
        it.move_to(&elsewhere[1]);
        assert_eq!(it.next(None), (elsewhere[1].clone(), Duration::ZERO));
        assert_eq!(it.elsewhere(), Elsewhere::default(), "it has moved");
        it.next(None);
        assert_eq!(it.elsewhere(), Elsewhere::default(), "the leader could not be reached");
        it.succeeded();
        it.next(None);
        assert_eq!(it.elsewhere().endpoints.len(), 2);

        let mut it = Servers::new(vec!["a".into(), "b".into()], PreferLeader::WhenWaiting);
        it.next(None);
        assert!(!it.elsewhere().at_once && it.elsewhere().endpoints.len() == 1);

        let mut it = Servers::new(vec!["a".into(), "b".into()], PreferLeader::Never);
        it.next(None);
        assert_eq!(it.elsewhere(), Elsewhere::default());
    }

    #[test]
    fn a_session_that_has_followed_an_invitation_follows_the_next_one_unless_it_came_elsewhere() {
        let mut it = Servers::new(vec!["a".into(), "b".into(), "c".into()], PreferLeader::ByLoad);
        it.next(None);
        let away = it.elsewhere();
        assert!(away.when_waiting && away.by_invitation && !away.at_once);
        it.succeeded();
        it.move_to(&away.endpoints[0]);
        it.next(None);
        let there = it.elsewhere();
        assert!(there.by_invitation && !there.when_waiting && there.endpoints.len() == 2);
        it.next(None);
        assert_eq!(it.elsewhere(), Elsewhere::default(), "the leader had no room for it");
    }
}
