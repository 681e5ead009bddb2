//! fair-service: while nothing but load is wrong, a quiet client's small request is answered within a bound,
//! whatever other clients send; and so is an acquire by HTTP whose time to wait is over.

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_world::time::Nanos;

use super::super::Invariant;
use super::disturbances::Disturbances;
use crate::history::client::{ClientFact, ClientId};
use crate::history::{Book, Fact};

/// Unanswered calls of quiet clients, with the start of each.
pub struct FairService {
    bound: Duration,
    disturbances: Disturbances,
    waits: BTreeMap<ClientId, (Nanos, &'static str)>,
}

impl FairService {
    /// Demands an answer within `bound`, except while a disturbance lasts.
    pub fn within(bound: Duration, disturbances: Disturbances) -> Self {
        FairService { bound, disturbances, waits: BTreeMap::new() }
    }

    fn check(&self, client: ClientId, now: Nanos) -> Result<(), String> {
        let Some((since, request)) = self.waits.get(&client).copied() else { return Ok(()) };
        if now - since <= self.bound || !self.disturbances.spare(since, now) {
            return Ok(());
        }
        Err(format!(
            "client {} waits for the answer to its {request} from {since} to {now}, more than {:?}, and \
             nothing but load is wrong",
            client.0, self.bound
        ))
    }
}

impl Invariant for FairService {
    fn name(&self) -> &'static str {
        "fair-service"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Client { client, at, what: ClientFact::Waits { request } } => {
                self.waits.insert(*client, (*at, *request));
            }
            Fact::Client { client, at, what: ClientFact::Served } => {
                self.check(*client, *at)?;
                self.waits.remove(client);
            }
            Fact::Client { client, what: ClientFact::Ended, .. } => {
                self.waits.remove(client);
            }
            Fact::Passed { at } => return self.waits.keys().try_for_each(|client| self.check(*client, *at)),
            _ => {}
        }
        Ok(())
    }
}
