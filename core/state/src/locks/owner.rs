//! Whose a place is in the eyes of deadlock detection.

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
    /// All that works under a certain place, and keeps its maker from giving it back. What comes from another
    /// address than the maker does not: it is no part of what the maker waits for.
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

    /// As what else it works: for whom.
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

/// An address as a number; 0 if it is not known.
fn number_of(address: &str) -> u128 {
    match address.parse() {
        Ok(IpAddr::V4(v4)) => v4.to_ipv6_mapped().to_bits(),
        Ok(IpAddr::V6(v6)) => v6.to_bits(),
        Err(_) => 0,
    }
}

/// Under whom a place is found.
pub(super) fn owners(contender: &Contender) -> impl Iterator<Item = OwnerKey> {
    let own = OwnerKey::new(contender.owner, contender.session);
    own.into_iter().chain(OwnerKey::works_under(contender.owner, &contender.address))
}
