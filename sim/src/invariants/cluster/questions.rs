//! questions: a question takes no lock away before its deadline, and without one never; a holder that the
//! cluster serves hears of it.
//!
//! The log says who was asked, and how long the holder has; the clients that ask say what they have asked
//! for, and holders what they have heard, and when they give up.

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_proto::FencingToken;
use rowlock_world::time::Nanos;

use super::super::{Invariant, SERVES_WITHIN};
use crate::history::client::{ClientFact, ClientId};
use crate::history::{Fact, Lock, Millis};

/// A question is heard so long after it was asked, or after the cluster has served the client again.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// And so often the holder has looked since: one that was paused looks before its session's task has run.
const LOOKS: u32 = 5;
/// Clocks of clients may run faster: of a deadline they see this part at least.
const LEAST_PART: f64 = 0.9;

/// A hold that the log has granted.
#[derive(Default)]
struct Hold {
    /// When the newest question was asked, by the log's clock and in truth.
    asked: Option<(Millis, Nanos)>,
    /// Since when, and how long the holder has.
    deadline: Option<(Millis, u32)>,
    heard: Option<Millis>,
    /// When the holder looked first: of several locks it holds none before it has all of them.
    looked: Option<Nanos>,
    /// How often the holder has looked since it should have heard.
    looks: u32,
}

pub struct Questions {
    now: Nanos,
    /// Nothing goes wrong in the run, so that every client is served.
    is_calm: bool,
    holds: BTreeMap<(Lock, FencingToken), Hold>,
    /// What clients have asked for: when, and within which time.
    asks: Vec<(Lock, Nanos, u32)>,
    /// The clients that the cluster has to serve, and since when.
    served: BTreeMap<ClientId, Nanos>,
}

impl Questions {
    /// Of a run in which something goes wrong, or nothing.
    pub fn new(has_faults: bool) -> Self {
        let (now, is_calm) = (Nanos(0), !has_faults);
        Questions { now, is_calm, holds: BTreeMap::new(), asks: Vec::new(), served: BTreeMap::new() }
    }

    /// Since when a client has been served, if it is.
    fn served_since(&self, client: ClientId) -> Option<Nanos> {
        if self.is_calm { Some(Nanos(0)) } else { self.served.get(&client).map(|at| *at + SERVES_WITHIN) }
    }

    fn revoked(&mut self, hold: (Lock, FencingToken), at: Millis, has_maximum: bool) -> Result<(), String> {
        let Some(known) = self.holds.get(&hold).filter(|_| !has_maximum) else { return Ok(()) };
        match known.deadline {
            Some((since, within_ms)) if at.0 >= since.0 + i64::from(within_ms) => Ok(()),
            Some(deadline) => {
                Err(format!("{hold:?} was taken away at {at:?}, before its deadline {deadline:?}"))
            }
            None => Err(format!("{hold:?} was taken away at {at:?}, and nobody has set a deadline")),
        }
    }

    /// A holder has given up because of a deadline.
    fn given_up(&self, lock: Lock, token: FencingToken) -> Result<(), String> {
        let is_over = |within_ms: u32, since: Nanos| {
            self.now >= since + Duration::from_millis(within_ms.into()).mul_f64(LEAST_PART)
        };
        let mut asks = self.asks.iter().filter(|(of, ..)| *of == lock);
        match asks.any(|(_, since, within_ms)| is_over(*within_ms, *since)) {
            true => Ok(()),
            false => {
                Err(format!("the holder of {lock:?} by {token} gave up at {}, before any deadline", self.now))
            }
        }
    }

    fn looked(&mut self, client: ClientId, hold: (Lock, FencingToken)) -> Result<(), String> {
        let served = self.served_since(client);
        let (now, Some(known)) = (self.now, self.holds.get_mut(&hold)) else { return Ok(()) };
        let first = *known.looked.get_or_insert(now);
        let Some((asked, at)) =
            known.asked.filter(|(asked, _)| known.heard.is_none_or(|heard| heard < *asked))
        else {
            return Ok(());
        };
        let is_late = served.is_some_and(|since| now > since.max(at).max(first) + HEARD_WITHIN);
        known.looks = if is_late { known.looks + 1 } else { 0 };
        if known.looks < LOOKS {
            return Ok(());
        }
        Err(format!(
            "client {} holds {hold:?} at {now} and has not heard what was asked at {at} ({asked:?})",
            client.0
        ))
    }

    fn client(&mut self, client: ClientId, what: &ClientFact) -> Result<(), String> {
        match what {
            ClientFact::Asks { lock, within_ms } => {
                self.asks.extend(within_ms.map(|within_ms| (*lock, self.now, within_ms)));
            }
            ClientFact::Heard { lock, token, asked } => {
                if let Some(hold) = self.holds.get_mut(&(*lock, *token)) {
                    hold.heard = hold.heard.max(Some(*asked));
                }
            }
            ClientFact::GaveUp { lock, token } => return self.given_up(*lock, *token),
            ClientFact::Holds { lock, token, .. } => return self.looked(client, (*lock, *token)),
            _ => {}
        }
        Ok(())
    }
}

impl Invariant for Questions {
    fn name(&self) -> &'static str {
        "questions"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::Entitled { lock, token, .. } => {
                self.holds.entry((*lock, *token)).or_default();
            }
            Fact::Questioned { lock, token, asked, deadline } => {
                let now = self.now;
                let hold = self.holds.entry((*lock, *token)).or_default();
                (hold.asked, hold.deadline, hold.looks) = (Some((*asked, now)), *deadline, 0);
            }
            Fact::Revoked { lock, token, at, has_maximum, .. } => {
                self.revoked((*lock, *token), *at, *has_maximum)?;
            }
            // What was asked for before holds for those who were asked.
            Fact::NewLife(_) => self.holds.clear(),
            Fact::Gone { lock, token, .. } => {
                self.holds.remove(&(*lock, *token));
            }
            Fact::Connected { at, now } => {
                let served = now.as_ref().map(|now| &now.served);
                let before = std::mem::take(&mut self.served);
                let since = |client: &ClientId| (*client, *before.get(client).unwrap_or(at));
                self.served = served.into_iter().flatten().map(since).collect();
                self.holds.values_mut().for_each(|hold| hold.looks = 0);
            }
            Fact::Client { client, what, .. } => return self.client(*client, what),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rowlock_proto::lock::Mode;
    use rowlock_proto::{NodeId, SessionId, Zxid};
    use rowlock_state::outcome::Why;

    use super::super::super::{Invariants, entitled, judge};
    use super::super::testing::client_at;
    use super::*;
    use crate::history::node::Position;
    use crate::history::{Index, NewLife};

    const LOCK: Lock = Lock(0);
    const TOKEN: FencingToken = FencingToken(5);

    fn asked(at: i64, deadline: Option<u32>) -> Fact {
        let deadline = deadline.map(|within_ms| (Millis(at), within_ms));
        Fact::Questioned { lock: LOCK, token: TOKEN, asked: Millis(at), deadline }
    }

    fn revoked(at: i64, has_maximum: bool) -> Fact {
        Fact::Revoked { lock: LOCK, token: TOKEN, session: SessionId(5), at: Millis(at), has_maximum }
    }

    fn granted() -> Fact {
        entitled(5, None, Millis(0))
    }

    #[test]
    fn a_lock_that_is_taken_away_without_a_deadline_or_before_it_is_caught() {
        let judge = |facts: &[Fact]| judge(Questions::new(true), facts);
        assert_eq!(judge(&[granted(), asked(1, Some(1_000)), revoked(1_001, false)]), Ok(()));
        assert!(judge(&[granted(), asked(1, Some(1_000)), revoked(1_000, false)]).is_err());
        assert!(judge(&[granted(), asked(1, None), revoked(60_000, false)]).is_err());
        assert_eq!(judge(&[granted(), asked(1, None), revoked(60_000, true)]), Ok(()), "by its own maximum");
        let gone = Fact::Gone { lock: LOCK, token: TOKEN, why: Why::Released };
        assert_eq!(judge(&[granted(), gone, revoked(2, false)]), Ok(()), "of an earlier cluster");
    }

    #[test]
    fn a_holder_that_gives_up_before_any_deadline_is_caught() {
        let asks = |within_ms| client_at(1_000, 2, ClientFact::Asks { lock: LOCK, within_ms });
        let gave_up = |ms| client_at(ms, 1, ClientFact::GaveUp { lock: LOCK, token: TOKEN });
        let judge = |facts: &[Fact]| judge(Questions::new(true), facts);
        assert_eq!(judge(&[asks(Some(2_000)), gave_up(3_000)]), Ok(()));
        assert!(judge(&[asks(Some(2_000)), gave_up(2_700)]).is_err());
        assert!(judge(&[asks(None), gave_up(90_000)]).is_err());
        let beginning = Position { term: 0, leader: NodeId(0), index: Index(1) };
        let begins_with = Vec::new();
        let recovered = Fact::NewLife(Arc::new(NewLife { beginning, floor: Zxid(9), begins_with }));
        let mut all = Invariants::of_a_cluster();
        for fact in [asks(Some(2_000)), recovered, gave_up(3_000)] {
            assert_eq!(all.observe(&fact), Ok(()), "by a question of the former cluster");
        }
    }

    #[test]
    fn a_holder_that_is_served_and_does_not_hear_is_caught_if_it_has_looked_often_enough() {
        let holds =
            |ms| client_at(ms, 1, ClientFact::Holds { lock: LOCK, token: TOKEN, mode: Mode::Exclusive });
        let heard =
            |asked| client_at(3_500, 1, ClientFact::Heard { lock: LOCK, token: TOKEN, asked: Millis(asked) });
        let looks = |from: u64| (0..u64::from(LOOKS)).map(move |n| holds(from + n * 100));
        let begin = [granted(), holds(900), asked(7, None)];
        let history = |rest: Vec<Fact>| begin.iter().cloned().chain(rest).collect::<Vec<_>>();
        let calm = |rest: Vec<Fact>| judge(Questions::new(false), &history(rest));
        assert!(calm(looks(4_000).collect()).is_err());
        assert_eq!(calm(looks(3_000).collect()), Ok(()), "there is time");
        assert_eq!(calm(looks(4_000).skip(1).collect()), Ok(()), "its task may not have run");
        assert_eq!(calm([heard(7)].into_iter().chain(looks(4_000)).collect()), Ok(()));
        let late = |from| {
            judge(
                Questions::new(false),
                &[vec![granted(), asked(7, None), holds(9_000)], looks(from).collect()].concat(),
            )
        };
        assert_eq!(late(11_500), Ok(()), "it was granted several locks");
        assert!(late(12_500).is_err());
        assert!(calm([heard(6)].into_iter().chain(looks(4_000)).collect()).is_err(), "an older one");
        assert_eq!(
            judge(Questions::new(true), &history(looks(4_000).collect())),
            Ok(()),
            "nobody owes service"
        );
    }
}
