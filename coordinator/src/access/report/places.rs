//! The places of reports that are made at the same time, shared among those who ask.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::rate;
use rowlock_types::limits::{REPORTS_FOR_SUPERUSERS, REPORTS_MAX};

/// Who asks for a report. HTTP and sessions of one host are two parties, so that neither keeps the other out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// Clients of this host, by ZooKeeper's protocol.
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

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    among: Arc<ReportSlots>,
    /// `None`: one of those for superusers.
    party: Option<Requester>,
}

impl ReportSlots {
    /// Takes a place. A party gets one while it has fewer than are left, so that some are left for the next
    /// party. Superusers have some of their own.
    pub(super) fn take(self: &Arc<Self>, party: Requester, is_super: bool) -> Option<Permit> {
        let mut taken = self.0.lock();
        if is_super && taken.by_superusers < REPORTS_FOR_SUPERUSERS {
            taken.by_superusers += 1;
            return Some(Permit { among: self.clone(), party: None });
        }
        let party = party.of_host();
        let left = REPORTS_MAX - REPORTS_FOR_SUPERUSERS - taken.all;
        let own = taken.of_party.get(&party).copied().unwrap_or(0);
        if own >= left {
            return None;
        }
        taken.all += 1;
        taken.of_party.insert(party, own + 1);
        Some(Permit { among: self.clone(), party: Some(party) })
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        let taken = self.0.lock();
        REPORTS_MAX - taken.all - taken.by_superusers
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.among.0.lock();
        let Some(party) = self.party else {
            taken.by_superusers -= 1;
            return;
        };
        taken.all -= 1;
        let own = taken.of_party.get_mut(&party).expect("Invariant: a party with a place is counted");
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
    fn a_party_that_takes_all_it_can_leaves_places_to_others_and_to_superusers() {
        let places = Arc::new(ReportSlots::default());
        let host = |last| IpAddr::from([10, 0, 0, last]);
        let all = |party| -> Vec<Permit> { std::iter::from_fn(|| places.take(party, false)).collect() };
        let greedy = all(Requester::Sessions(host(1)));
        assert_eq!(greedy.len(), 3);
        let by_http = places.take(Requester::Http(host(1)), false);
        assert!(by_http.is_some(), "HTTP of the same host is another party");
        let next = all(Requester::Sessions(host(2)));
        assert_eq!(next.len(), 1);
        let superusers: Vec<_> =
            std::iter::from_fn(|| places.take(Requester::Sessions(host(1)), true)).collect();
        assert_eq!(superusers.len(), REPORTS_FOR_SUPERUSERS);
        drop((greedy, by_http, next, superusers));
        assert_eq!(places.free(), REPORTS_MAX);
        assert!(places.0.lock().of_party.is_empty());
    }
}
