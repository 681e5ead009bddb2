//! progress: after every fault has healed, every call that does not wait for a lock ends within a bound; and
//! when all clients are at rest, no call of a living client is pending.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::Fact;
use crate::history::client::{CallId, ClientFact, ClientId, Op};

struct Open {
    client: ClientId,
    since: Nanos,
    op: Arc<Op>,
}

impl Open {
    fn waits_for_a_lock(&self) -> bool {
        matches!(*self.op, Op::Acquire { .. })
    }
}

pub struct Progress {
    bound: Duration,
    healed: Option<Nanos>,
    open: BTreeMap<CallId, Open>,
}

impl Progress {
    /// Demands that, after every fault has healed, each call ends within `bound`.
    pub fn within(bound: Duration) -> Self {
        Progress { bound, healed: None, open: BTreeMap::new() }
    }

    fn overdue(&self, now: Nanos) -> Result<(), String> {
        let Some(healed) = self.healed else { return Ok(()) };
        let is_overdue = |open: &&Open| !open.waits_for_a_lock() && now > open.since.max(healed) + self.bound;
        match self.open.values().find(is_overdue) {
            Some(open) => Err(format!(
                "{:?} of client {} since {} has no end at {now}, and everything is healed since {healed}",
                open.op, open.client.0, open.since
            )),
            None => Ok(()),
        }
    }
}

impl Invariant for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Healed { at } => self.healed = Some(*at),
            Fact::Passed { at } => return self.overdue(*at),
            Fact::Client { client, at, what: ClientFact::Invoked { call, op, .. } } => {
                self.open.insert(*call, Open { client: *client, since: *at, op: op.clone() });
            }
            Fact::Client { what: ClientFact::Returned { call, .. }, .. } => {
                self.open.remove(call);
            }
            Fact::Client { client, what: ClientFact::Ended, .. } => {
                self.open.retain(|_, open| open.client != *client);
            }
            Fact::Settled => {
                if let Some(open) = self.open.values().next() {
                    return Err(format!(
                        "{:?} of client {} since {} never ends",
                        open.op, open.client.0, open.since
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;

    use super::super::super::check_history;
    use super::super::testing::{client, invoked, returned, set};
    use super::*;
    use crate::history::Lock;
    use crate::history::client::Failure;

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(Progress::within(Duration::from_millis(100)), facts)
    }

    fn passed(ms: u64) -> Fact {
        Fact::Passed { at: Nanos::from_millis(ms) }
    }

    #[test]
    fn a_call_without_end_is_caught_once_everything_is_healed() {
        let call = invoked(1, 1, set("/data/a", "1"));
        let healed = Fact::Healed { at: Nanos::from_millis(1_000) };
        assert!(check_facts(&[call.clone(), healed.clone(), passed(1_100), passed(1_101)]).is_err());
        assert_eq!(check_facts(&[call.clone(), passed(9_000)]), Ok(()), "faults go on");
        let returned = returned(1, 1, Err(Failure::Unknown));
        assert_eq!(
            check_facts(&[call.clone(), healed.clone(), returned, passed(9_000), Fact::Settled]),
            Ok(())
        );
        assert_eq!(check_facts(&[call, healed, client(1, ClientFact::Ended), passed(9_000)]), Ok(()));
    }

    #[test]
    fn who_waits_for_a_lock_may_wait_until_the_end() {
        let call = invoked(1, 1, Op::Acquire { lock: Lock(0), mode: Mode::Shared });
        let healed = Fact::Healed { at: Nanos(0) };
        assert_eq!(check_facts(&[call.clone(), healed.clone(), passed(9_000)]), Ok(()));
        assert!(check_facts(&[call, healed, Fact::Settled]).is_err());
    }
}
