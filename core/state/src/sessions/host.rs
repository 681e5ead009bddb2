//! The host of a client, as sessions are counted.

use std::net::IpAddr;

use rowlock_proto::acl::Id;
use serde::{Deserialize, Serialize};

/// Host that opened a session: an IPv4 address, or the /64 of an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Host(u128);

impl Host {
    /// Unknown address. All sessions of unknown addresses count as sessions of one host.
    pub const UNKNOWN: Host = Host(0);

    pub fn of(address: IpAddr) -> Host {
        match address.to_canonical() {
            IpAddr::V4(v4) => Host(v4.to_ipv6_mapped().to_bits()),
            IpAddr::V6(v6) if v6.is_loopback() => Host(v6.to_bits()),
            IpAddr::V6(v6) => Host(v6.to_bits() >> 64 << 64),
        }
    }

    pub(super) fn among(who: &[Id]) -> Host {
        let address = who.iter().find(|id| id.scheme == "ip").and_then(|id| id.id.parse().ok());
        address.map_or(Host::UNKNOWN, Host::of)
    }

    pub(super) fn words(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }
}
