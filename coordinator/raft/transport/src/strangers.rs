//! Unauthenticated connections: bounded in total and per address, so that a flood exhausts neither the node's
//! file descriptors nor the slots of nodes at other addresses. Failed handshakes are bounded, too: each
//! address gets a fixed number per second, and so a small share of the processor.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time::Instant;

use crate::limits::{PEER_REFUSALS_OF_ADDRESS_MAX, PEER_STRANGERS_MAX, PEER_STRANGERS_OF_ADDRESS_MAX};

/// Period over which refusals are counted.
const REFUSALS_SPAN: Duration = Duration::from_secs(1);
/// Most addresses whose refusals are counted; further addresses in the same second are not.
const REFUSED_ADDRESSES_MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of_address: BTreeMap<IpAddr, usize>,
    refused: BTreeMap<IpAddr, u32>,
    since: Option<Instant>,
}

/// Reason to drop a connection before its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAdmitted {
    #[error("too many connections are in their handshake")]
    TooMany,
    /// The address had too many failed handshakes.
    #[error("too many handshakes of its address have failed in this second")]
    TooManyFailed,
}

/// Slot of an unauthenticated connection; dropped after authentication or at the connection's end.
#[derive(Debug)]
pub(super) struct Stranger {
    among: Arc<Strangers>,
    address: IpAddr,
}

impl Strangers {
    /// Reserves a slot for a connection that arrives `now`.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, now: Instant) -> Result<Stranger, NotAdmitted> {
        let address = address.to_canonical();
        let mut counts = self.0.lock();
        counts.begin_second(now);
        let refused = counts.refused.get(&address).copied().unwrap_or(0);
        if refused >= PEER_REFUSALS_OF_ADDRESS_MAX && !address.is_loopback() {
            return Err(NotAdmitted::TooManyFailed);
        }
        let of_address = counts.of_address.get(&address).copied().unwrap_or(0);
        let is_flood = of_address >= PEER_STRANGERS_OF_ADDRESS_MAX && !address.is_loopback();
        if counts.all >= PEER_STRANGERS_MAX || is_flood {
            return Err(NotAdmitted::TooMany);
        }
        counts.all += 1;
        counts.of_address.insert(address, of_address + 1);
        Ok(Stranger { among: self.clone(), address })
    }
}

impl Counts {
    fn begin_second(&mut self, now: Instant) {
        if self.since.is_none_or(|since| now.saturating_since(since) >= REFUSALS_SPAN) {
            self.refused.clear();
            self.since = Some(now);
        }
    }
}

impl Stranger {
    /// Counts a refused handshake at `now`.
    pub(super) fn refused(self, now: Instant) {
        let mut counts = self.among.0.lock();
        counts.begin_second(now);
        if counts.refused.len() < REFUSED_ADDRESSES_MAX || counts.refused.contains_key(&self.address) {
            let count = counts.refused.entry(self.address).or_default();
            *count = count.saturating_add(1);
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut counts = self.among.0.lock();
        counts.all -= 1;
        let left = counts.of_address.get(&self.address).map_or(0, |count| count - 1);
        if left == 0 {
            counts.of_address.remove(&self.address);
        } else {
            counts.of_address.insert(self.address, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;

    use super::*;

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn an_address_with_many_failures_waits_for_the_next_second() {
        let strangers = Arc::new(Strangers::default());
        let now = time::now();
        for _ in 0..PEER_REFUSALS_OF_ADDRESS_MAX {
            strangers.admit(address(1), now).unwrap().refused(now);
        }
        assert_eq!(strangers.admit(address(1), now).err(), Some(NotAdmitted::TooManyFailed));
        assert!(strangers.admit(address(2), now).is_ok());
        assert!(strangers.admit(address(1), now + REFUSALS_SPAN).is_ok(), "the next second has begun");
    }

    #[test]
    fn counts_of_refusals_are_bounded() {
        let strangers = Arc::new(Strangers::default());
        let now = time::now();
        for n in 0..2 * REFUSED_ADDRESSES_MAX as u32 {
            strangers.admit(IpAddr::from(n.to_be_bytes()), now).unwrap().refused(now);
        }
        assert_eq!(strangers.0.lock().refused.len(), REFUSED_ADDRESSES_MAX);
    }

    #[test]
    fn slots_are_bounded_per_address_and_in_total() {
        let strangers = Arc::new(Strangers::default());
        let now = time::now();
        let admit = |address| strangers.admit(address, now);
        let mut in_place: Vec<_> = (0..PEER_STRANGERS_OF_ADDRESS_MAX).map(|_| admit(address(1))).collect();
        assert!(in_place.iter().all(Result::is_ok));
        assert_eq!(admit(address(1)).err(), Some(NotAdmitted::TooMany), "this address has no slot left");
        assert!(admit(address(2)).is_ok(), "another one has");
        in_place.pop();
        assert!(admit(address(1)).is_ok(), "one has gone");
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let more: Vec<_> = (0..PEER_STRANGERS_MAX).map_while(|_| admit(loopback).ok()).collect();
        assert_eq!(more.len() + in_place.len(), PEER_STRANGERS_MAX);
        assert_eq!(admit(address(2)).err(), Some(NotAdmitted::TooMany), "all slots are taken");
        drop((in_place, more));
        assert_eq!(strangers.0.lock().all, 0);
        assert!(strangers.0.lock().of_address.is_empty());
    }
}
