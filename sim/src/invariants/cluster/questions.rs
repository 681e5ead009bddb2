//! questions: a holder with service of the cluster hears of a request to release, and gives up only because
//! of a deadline. The oracle checks that no lock is revoked before a deadline
//! (`sim/oracle/src/promises.rs`).
//!
//! The log names the holder, the request and the deadline; the requesting clients report their requests, and
//! holders report the requests that they heard, and when a holder gives up.

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_proto::FencingToken;
use rowlock_world::time::Nanos;

use super::super::{Invariant, SERVES_WITHIN};
use crate::history::client::{ClientFact, ClientId};
use crate::history::{Book, Fact, Lock, Millis};

/// Bound from a request, or from renewed service of the holder's client, to the holder's notice.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// Checks of the holder after the bound: a paused holder runs its check before its session's task.
const LOOKS: u32 = 5;
/// Part of a deadline that a client waits at least: clocks of clients may run faster.
const LEAST_PART: f64 = 0.9;

/// Hold of a lock, granted by the log.
#[derive(Default)]
struct Hold {
    /// Time of the newest request, by the log's clock and in true time.
    asked: Option<(Millis, Nanos)>,
    heard: Option<Millis>,
    /// First check by the holder: a holder of several locks checks none before it has all of them.
    looked: Option<Nanos>,
    /// Checks by the holder since the bound for hearing passed.
    looks: u32,
}

pub struct Questions {
    now: Nanos,
    /// The run has no faults, so the cluster serves every client.
    is_calm: bool,
    holds: BTreeMap<(Lock, FencingToken), Hold>,
    /// Requests of clients with a deadline: lock, time, deadline in milliseconds.
    asks: Vec<(Lock, Nanos, u32)>,
    /// Clients that the cluster must serve, with the start of the service.
    served: BTreeMap<ClientId, Nanos>,
}

impl Questions {
    /// Creates the checker for a run with or without faults.
    pub fn new(has_faults: bool) -> Self {
        let (now, is_calm) = (Nanos(0), !has_faults);
        Questions { now, is_calm, holds: BTreeMap::new(), asks: Vec::new(), served: BTreeMap::new() }
    }

    /// Returns the start of a client's service, if the cluster must serve the client.
    fn served_since(&self, client: ClientId) -> Option<Nanos> {
        if self.is_calm { Some(Nanos(0)) } else { self.served.get(&client).map(|at| *at + SERVES_WITHIN) }
    }

    /// Checks a holder that gave up because of a deadline.
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

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::Entitled { lock, token, .. } => {
                self.holds.entry((*lock, *token)).or_default();
            }
            Fact::Questioned { lock, token, asked } => {
                let now = self.now;
                let hold = self.holds.entry((*lock, *token)).or_default();
                (hold.asked, hold.looks) = (Some((*asked, now)), 0);
            }
            // A client's request applies to the lives in which the client sent it, so `asks` stays.
            Fact::NewLife(_) => self.holds.clear(),
            Fact::Left { lock, token, .. } => {
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
