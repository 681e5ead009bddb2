//! progress: after every fault has healed, every call that does not wait for a lock ends within a bound; and
//! when all clients are at rest, no call of a living client is pending.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::client::{CallId, ClientFact, ClientId, Op};
use crate::history::{Book, Fact};

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

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
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
