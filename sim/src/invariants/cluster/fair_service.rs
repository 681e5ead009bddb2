//! fair-service: while nothing but load is wrong, a quiet client's small request is answered within a bound,
//! whatever other clients send.

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_world::time::Nanos;

use super::super::Invariant;
use super::disturbances::Disturbances;
use crate::history::Fact;
use crate::history::client::{ClientFact, ClientId};

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
            "quiet client {} waits for the answer to its {request} from {since} to {now}, more than {:?}, and \
             nothing but load is wrong",
            client.0, self.bound
        ))
    }
}

impl Invariant for FairService {
    fn name(&self) -> &'static str {
        "fair-service"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::client_at;
    use super::*;

    const BOUND: Duration = Duration::from_millis(500);

    fn check_facts(disturbed: &[(u64, u64)], facts: &[Fact]) -> Result<(), String> {
        let times = disturbed.iter().map(|(from, to)| (Nanos::from_millis(*from), Nanos::from_millis(*to)));
        check_history(FairService::within(BOUND, Disturbances::new(times.collect())), facts)
    }

    fn waits(at: u64) -> Fact {
        client_at(at, 4, ClientFact::Waits { request: "write" })
    }

    fn served(at: u64) -> Fact {
        client_at(at, 4, ClientFact::Served)
    }

    #[test]
    fn a_quiet_client_that_waits_too_long_is_caught() {
        assert_eq!(check_facts(&[], &[waits(1_000), served(1_500), waits(1_600), served(1_601)]), Ok(()));
        assert!(check_facts(&[], &[waits(1_000), served(1_501)]).unwrap_err().contains("quiet client 4"));
        let passed = |ms| Fact::Passed { at: Nanos::from_millis(ms) };
        assert_eq!(check_facts(&[], &[waits(1_000), passed(1_400), served(1_450), passed(2_000)]), Ok(()));
        assert!(check_facts(&[], &[waits(1_000), passed(2_000)]).is_err());
        assert_eq!(
            check_facts(&[], &[waits(1_000), client_at(1_100, 4, ClientFact::Ended), passed(3_000)]),
            Ok(())
        );
    }

    #[test]
    fn a_wait_that_meets_something_else_that_is_wrong_is_not_judged() {
        let facts = [waits(1_000), served(2_000)];
        for (disturbed, is_judged) in [
            ((0, 999), true),
            ((0, 1_000), false),
            ((1_200, 1_300), false),
            ((2_000, 9_000), false),
            ((2_001, 9_000), true),
        ] {
            assert_eq!(check_facts(&[disturbed], &facts).is_err(), is_judged, "{disturbed:?}");
        }
    }
}
