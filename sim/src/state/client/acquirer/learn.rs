//! What an acquiring client learns: from answers to its writes, from verifications, from notices.

use rowlock_proto::lock::{Acquire, Claim, Mode, Notice, NoticeEvent, PlaceState};
use rowlock_proto::{ErrorCode, Zxid};
use rowlock_state::command::Command;
use rowlock_state::outcome::Outcome;

use super::outbox::Sent;
use super::place::{Place, Stage};
use super::{Acquirer, Turn};
use crate::history::{Fact, Millis};
use crate::state::client::{Act, lock_path};
use crate::state::message::Down;

impl Acquirer {
    /// A message that is not about the session.
    pub(in super::super) fn receive(&mut self, down: Down, turn: &mut Turn<'_, '_>) -> Vec<Act> {
        self.end_overdue(turn);
        match down {
            Down::Answer { tag, zxid, result } if self.verifying == Some(tag) => {
                self.verifying = None;
                self.verified(zxid, result, turn)
            }
            Down::Answer { tag, zxid, result } => match self.outbox.answered(tag) {
                Some(sent) => self.answered(sent, zxid, result, turn),
                None => Vec::new(),
            },
            Down::Notice { zxid, notice } => self.noticed(zxid, &notice, turn),
            _ => Vec::new(),
        }
    }

    fn answered(
        &mut self,
        sent: Sent,
        zxid: Zxid,
        result: Result<Outcome, ErrorCode>,
        turn: &mut Turn<'_, '_>,
    ) -> Vec<Act> {
        if result == Err(ErrorCode::ThrottledOp) {
            self.outbox.hoards = false;
            // It was not run, so it is a new write.
            let again = self.still_wanted(sent.command);
            return again.map(|command| self.outbox.send(command, turn)).into_iter().collect();
        }
        match (sent.command, result) {
            (Command::Acquire(all), Ok(Outcome::PlaceStates(place_states))) => {
                let pairs = all.iter().zip(place_states);
                pairs.flat_map(|(acquire, one)| self.stands(acquire, one, sent.at, zxid, turn)).collect()
            }
            // Refused: nothing was done.
            (Command::Acquire(all), _) => {
                for acquire in all {
                    if let Some(at) = self.find(|prefix| *prefix == *acquire.prefix, &acquire.lock) {
                        self.end_belief(at, turn);
                        self.remove(at, turn);
                    }
                }
                Vec::new()
            }
            (Command::Release(claims), _) => {
                claims.iter().for_each(|claim| self.gone(claim, turn));
                Vec::new()
            }
            (Command::Convert { prefix, .. }, result) => self.upgraded(&prefix, result, zxid, turn),
            (Command::Abandon(attempts), _) => {
                for attempt in attempts {
                    if let Some(at) = self.find(|prefix| prefix == attempt.prefix, &attempt.lock) {
                        self.remove(at, turn);
                    }
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A convert was answered: it holds the lock alone in another place, or with others as before.
    fn upgraded(
        &mut self,
        prefix: &str,
        result: Result<Outcome, ErrorCode>,
        zxid: Zxid,
        turn: &mut Turn<'_, '_>,
    ) -> Vec<Act> {
        let is_it = |place: &Place| place.upgrade.as_deref() == Some(prefix);
        let Some(at) = self.places.iter().position(is_it) else { return Vec::new() };
        self.places[at].upgrade = None;
        let Ok(Outcome::PlaceStates(place_states)) = result else { return Vec::new() };
        match place_states.into_iter().next() {
            Some(PlaceState::Held(claim)) => {
                self.end_belief(at, turn);
                let place = &mut self.places[at];
                (place.prefix, place.wish.mode) = (prefix.to_owned(), Mode::Exclusive);
                self.believe(at, claim, zxid, turn)
            }
            Some(PlaceState::Absent) => {
                self.end_belief(at, turn);
                self.remove(at, turn);
                Vec::new()
            }
            // Busy: nothing has changed. There is no other answer.
            _ => Vec::new(),
        }
    }

    /// What there is to send again of a write that was refused. Not the places that were given up since: the
    /// request to leave them is on its way already or answered, so nothing would release them after this one.
    fn still_wanted(&self, command: Command) -> Option<Command> {
        let Command::Acquire(mut all) = command else { return Some(command) };
        all.retain(|acquire| {
            let at = self.find(|prefix| *prefix == *acquire.prefix, &acquire.lock);
            at.is_some_and(|at| self.places[at].stage != Stage::Leaving)
        });
        (!all.is_empty()).then_some(Command::Acquire(all))
    }

    /// The answer about one place.
    fn stands(
        &mut self,
        acquire: &Acquire,
        place_state: PlaceState,
        sent: Millis,
        zxid: Zxid,
        turn: &mut Turn<'_, '_>,
    ) -> Vec<Act> {
        let found = self.find(|prefix| *prefix == *acquire.prefix, &acquire.lock);
        let Some(at) = found.filter(|at| self.places[*at].stage != Stage::Leaving) else {
            return Vec::new();
        };
        match place_state {
            PlaceState::Held(claim) => return self.believe(at, claim, zxid, turn),
            PlaceState::Waiting { claim, .. } => {
                self.places[at].stage = Stage::Waiting(claim);
                self.places[at].waited_at = sent;
            }
            PlaceState::Busy { .. }
            | PlaceState::Deadlock(_)
            | PlaceState::LimitIs(_)
            | PlaceState::Absent => {
                self.remove(at, turn);
            }
        }
        Vec::new()
    }

    fn verified(
        &mut self,
        zxid: Zxid,
        result: Result<Outcome, ErrorCode>,
        turn: &mut Turn<'_, '_>,
    ) -> Vec<Act> {
        let Ok(Outcome::Held(held)) = result else { return Vec::new() };
        let claims: Vec<Claim> = std::mem::take(&mut self.verified_claims);
        let mut acts = Vec::new();
        for (claim, held) in claims.into_iter().zip(held) {
            let Some(at) = self.places.iter().position(|place| place.held() == Some(&claim)) else {
                continue;
            };
            if held {
                acts.extend(self.believe(at, claim, zxid, turn));
            } else {
                self.end_belief(at, turn);
                self.remove(at, turn);
            }
        }
        acts
    }

    fn noticed(&mut self, zxid: Zxid, notice: &Notice, turn: &mut Turn<'_, '_>) -> Vec<Act> {
        let Notice { claim, event } = notice;
        let is_it = |stage: &Stage| match stage {
            Stage::Waiting(known) | Stage::Held(known) => known == claim,
            Stage::Asked | Stage::Leaving => false,
        };
        // Unknown: the answer that names the place is still to come, and will say more.
        let Some(at) = self.places.iter().position(|place| is_it(&place.stage)) else { return Vec::new() };
        match event {
            NoticeEvent::Granted => self.believe(at, claim.clone(), zxid, turn),
            NoticeEvent::Deleted | NoticeEvent::Forced | NoticeEvent::Revoked => {
                self.end_belief(at, turn);
                // The news and a repeated acquire have crossed: that one makes a new place.
                if self.is_asked(at) {
                    (self.places[at].stage, self.places[at].cap) = (Stage::Asked, None);
                } else {
                    self.remove(at, turn);
                }
                Vec::new()
            }
        }
    }

    /// The cluster says that the place holds its lock.
    fn believe(&mut self, at: usize, claim: Claim, seen: Zxid, turn: &mut Turn<'_, '_>) -> Vec<Act> {
        let now = turn.moment.now;
        let place = &mut self.places[at];
        if place.held() != Some(&claim) {
            place.cap = None;
        }
        let cap = place.cap.unwrap_or_else(|| place.cap_at(now, turn.timeout_ms, turn.mutant));
        place.cap = Some(cap);
        let token = claim.token;
        place.stage = Stage::Held(claim);
        // A granted lock is worth nothing to a client that cannot vouch for its session.
        if turn.past_deadline {
            return vec![Act::Disconnect];
        }
        if place.believed || cap <= now {
            return Vec::new();
        }
        place.believed = true;
        turn.moment.facts.push(Fact::Granted {
            lock: place.lock,
            token,
            session: turn.session,
            mode: place.wish.mode,
            by_queue: false,
            seen,
            now,
            until: turn.deadline,
            cap,
        });
        Vec::new()
    }

    fn gone(&mut self, claim: &Claim, turn: &mut Turn<'_, '_>) {
        let Some((lock, name)) = claim.path.rsplit_once('/') else { return };
        if let Some(at) = self.find(|prefix| name.starts_with(prefix), lock) {
            self.remove(at, turn);
        }
    }

    fn remove(&mut self, at: usize, turn: &mut Turn<'_, '_>) {
        let place = self.places.remove(at);
        self.last = place.lock;
        turn.moment.facts.push(Fact::Unwanted { lock: place.lock, session: turn.session });
    }

    fn find(&self, is_it: impl Fn(&str) -> bool, lock: &str) -> Option<usize> {
        self.places.iter().position(|place| lock_path(place.lock) == lock && is_it(&place.prefix))
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::SessionId;
    use rowlock_world::rng::Rng;

    use super::super::place::{Wish, owner_of};
    use super::super::{Style, prefix};
    use super::*;
    use crate::history::Lock;
    use crate::state::client::Moment;
    use crate::state::message::{Tag, Up};

    /// What a client does that has asked for two locks, has maybe given up the first, and is then refused for
    /// want of room.
    fn refused_for_want_of_room(gives_up_first: bool) -> Vec<Act> {
        let (mut rng, mut facts, mut tags) = (Rng::new(1), Vec::new(), 0);
        let moment = &mut Moment {
            now: Millis(1),
            settling: false,
            eager: 0,
            above: None,
            rng: &mut rng,
            facts: &mut facts,
        };
        let mut turn = Turn {
            session: SessionId(1),
            timeout_ms: 1_000,
            deadline: Millis(1_000),
            past_deadline: false,
            tags: &mut tags,
            mutant: None,
            moment,
        };
        let mut it = Acquirer::new(0, Style { tagged: true, hoards: true });
        it.places = (0..2).map(|lock| asked(Lock(lock), turn.moment.rng)).collect();
        it.ask(&[0, 1], &mut turn);
        if gives_up_first {
            it.leave(0, &mut turn);
        }
        let result = Err(ErrorCode::ThrottledOp);
        it.receive(Down::Answer { tag: Tag(1), zxid: Zxid(9), result }, &mut turn)
    }

    fn asked(lock: Lock, rng: &mut Rng) -> Place {
        Place {
            lock,
            attempt: 1,
            prefix: prefix(0, 1, Mode::Exclusive),
            wish: Wish::random(owner_of(0), true, rng),
            stage: Stage::Asked,
            waited_at: Millis(0),
            cap: None,
            believed: false,
            upgrade: None,
        }
    }

    fn locks_asked_for(acts: &[Act]) -> Vec<&str> {
        let [Act::Send(Up::Write { command: Command::Tagged { id: 2, command, .. }, .. })] = acts else {
            panic!("not a new write: {acts:?}");
        };
        let Command::Acquire(all) = &**command else { panic!("not an acquire: {command:?}") };
        all.iter().map(|acquire| &*acquire.lock).collect()
    }

    #[test]
    fn a_refused_acquire_is_sent_again_without_the_places_given_up_since() {
        assert_eq!(locks_asked_for(&refused_for_want_of_room(false)), ["/locks/0", "/locks/1"]);
        assert_eq!(locks_asked_for(&refused_for_want_of_room(true)), ["/locks/1"]);
    }
}
