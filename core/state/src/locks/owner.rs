//! Owners of positions, for deadlock detection.

use std::net::IpAddr;

use rowlock_proto::SessionId;
use rowlock_proto::lock::{Owner, place_number};

use super::contender::Contender;
use super::key::Key;

/// The waiting or holding party for deadlock detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OwnerKey {
    Session(SessionId),
    Named(u64),
    /// All work under a certain position; the work keeps the position's maker from releasing. Work from
    /// another address than the maker's does not count: the maker does not wait for such work.
    Under(u64, u128),
}

impl OwnerKey {
    pub(crate) fn new(owner: Owner, session: SessionId) -> Option<Self> {
        match owner {
            Owner::Unnamed => None,
            Owner::Session | Owner::Under(_) => Some(OwnerKey::Session(session)),
            Owner::Named(number) => Some(OwnerKey::Named(number)),
        }
    }

    /// Returns the key of the position that the owner works under.
    pub(crate) fn works_under(owner: Owner, address: &str) -> Option<Self> {
        match owner {
            Owner::Under(number) => Some(OwnerKey::Under(number, number_of(address))),
            Owner::Unnamed | Owner::Session | Owner::Named(_) => None,
        }
    }

    /// Returns the key of workers under this place.
    pub(super) fn workers_of(place: &Key, maker: &Contender) -> Self {
        OwnerKey::Under(place_number(&place.path), number_of(&maker.address))
    }
}

/// Returns an address as a number; 0 if unknown.
fn number_of(address: &str) -> u128 {
    match address.parse() {
        Ok(IpAddr::V4(v4)) => v4.to_ipv6_mapped().to_bits(),
        Ok(IpAddr::V6(v6)) => v6.to_bits(),
        Err(_) => 0,
    }
}

/// Iterates over the keys of a contender.
pub(super) fn owners(contender: &Contender) -> impl Iterator<Item = OwnerKey> {
    let own = OwnerKey::new(contender.owner, contender.session);
    own.into_iter().chain(OwnerKey::works_under(contender.owner, &contender.address))
}
