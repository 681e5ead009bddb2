//! Slots of concurrent reports, shared fairly slots the requesters.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::rate;

use crate::limits::{REPORTS_FOR_SUPERUSERS, REPORTS_MAX};

/// Requester of a report. HTTP and sessions of one host count separately, so neither blocks the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// Sessions of this host, over ZooKeeper's protocol.
    Sessions(IpAddr),
    Http(IpAddr),
}

impl Requester {
    fn of_host(self) -> Requester {
        match self {
            Requester::Sessions(addr) => Requester::Sessions(rate::host(addr)),
            Requester::Http(addr) => Requester::Http(rate::host(addr)),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ReportSlots(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_superusers: usize,
    of_party: BTreeMap<Requester, usize>,
}

/// Used slot. Dropping frees the slot.
#[derive(Debug)]
pub(super) struct Permit {
    slots: Arc<ReportSlots>,
    /// `None`: a slot for superusers.
    party: Option<Requester>,
}

impl ReportSlots {
    /// Takes a slot. A party may hold at most as many slots as remain free, so free slots remain for the next
    /// party. Superusers have additional slots.
    pub(super) fn take(self: &Arc<Self>, party: Requester, is_super: bool) -> Option<Permit> {
        let mut taken = self.0.lock();
        if is_super && taken.by_superusers < REPORTS_FOR_SUPERUSERS {
            taken.by_superusers += 1;
            return Some(Permit { slots: self.clone(), party: None });
        }
        let party = party.of_host();
        let left = REPORTS_MAX - REPORTS_FOR_SUPERUSERS - taken.all;
        let own = taken.of_party.get(&party).copied().unwrap_or(0);
        if own >= left {
            return None;
        }
        taken.all += 1;
        taken.of_party.insert(party, own + 1);
        Some(Permit { slots: self.clone(), party: Some(party) })
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        let taken = self.0.lock();
        REPORTS_MAX - taken.all - taken.by_superusers
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.slots.0.lock();
        let Some(party) = self.party else {
            taken.by_superusers -= 1;
            return;
        };
        taken.all -= 1;
        let own = taken.of_party.get_mut(&party).expect("Invariant: each used slot is counted for its party");
        *own -= 1;
        if *own == 0 {
            taken.of_party.remove(&party);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_party_leaves_slots_to_others_and_superusers() {
        let slots = Arc::new(ReportSlots::default());
        let host = |last| IpAddr::from([10, 0, 0, last]);
        let all = |party| -> Vec<Permit> { std::iter::from_fn(|| slots.take(party, false)).collect() };
        let greedy = all(Requester::Sessions(host(1)));
        assert_eq!(greedy.len(), 3);
        let by_http = slots.take(Requester::Http(host(1)), false);
        assert!(by_http.is_some(), "HTTP of the same host is another party");
        let next = all(Requester::Sessions(host(2)));
        assert_eq!(next.len(), 1);
        let superusers: Vec<_> =
            std::iter::from_fn(|| slots.take(Requester::Sessions(host(1)), true)).collect();
        assert_eq!(superusers.len(), REPORTS_FOR_SUPERUSERS);
        drop((greedy, by_http, next, superusers));
        assert_eq!(slots.free(), REPORTS_MAX);
        assert!(slots.0.lock().of_party.is_empty());
    }
}
