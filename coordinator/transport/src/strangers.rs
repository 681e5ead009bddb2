//! Connections that have not said yet who they are: bounded in all and for each address. So a flood takes
//! neither all files of the node nor the places of nodes that come from elsewhere.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_types::limits::{PEER_STRANGERS_MAX, PEER_STRANGERS_OF_ADDRESS_MAX};

/// How many there are.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Invariant: no zeroes.
    of_address: BTreeMap<IpAddr, usize>,
}

/// One of them; dropped when it is known, or gone.
#[derive(Debug)]
pub(super) struct Stranger {
    among: Arc<Strangers>,
    address: IpAddr,
}

impl Strangers {
    /// `None`: there are too many.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Stranger> {
        let address = address.to_canonical();
        let mut counts = self.0.lock();
        let of_address = counts.of_address.get(&address).copied().unwrap_or(0);
        let is_flood = of_address >= PEER_STRANGERS_OF_ADDRESS_MAX && !address.is_loopback();
        if counts.all >= PEER_STRANGERS_MAX || is_flood {
            return None;
        }
        counts.all += 1;
        counts.of_address.insert(address, of_address + 1);
        Some(Stranger { among: self.clone(), address })
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
    use super::*;

    #[test]
    fn an_address_has_few_places_and_all_together_have_many() {
        let strangers = Arc::new(Strangers::default());
        let address = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut in_place: Vec<_> =
            (0..PEER_STRANGERS_OF_ADDRESS_MAX).map(|_| strangers.admit(address(1))).collect();
        assert!(in_place.iter().all(Option::is_some));
        assert!(strangers.admit(address(1)).is_none(), "this address has no place left");
        assert!(strangers.admit(address(2)).is_some(), "another one has");
        in_place.pop();
        assert!(strangers.admit(address(1)).is_some(), "one has gone");
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let more: Vec<_> = (0..PEER_STRANGERS_MAX).map_while(|_| strangers.admit(loopback)).collect();
        assert_eq!(more.len() + in_place.len(), PEER_STRANGERS_MAX);
        assert!(strangers.admit(address(2)).is_none(), "all places are taken");
        drop((in_place, more));
        assert_eq!(strangers.0.lock().all, 0);
        assert!(strangers.0.lock().of_address.is_empty());
    }
}
