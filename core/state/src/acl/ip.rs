//! ACL ids of scheme `ip`: an address (v4 or v6) or a network in prefix form.

use std::net::IpAddr;

/// Returns whether `id` is an address or `address/bits`.
pub(super) fn is_valid(id: &str) -> bool {
    parse(id).is_some()
}

/// Returns whether the address `who` lies in the network `wanted`. v4 and v6 never match each other.
pub(super) fn matches(who: &str, wanted: &str) -> bool {
    let Ok(who) = who.parse::<IpAddr>() else { return false };
    match (who.to_canonical(), parse(wanted)) {
        (IpAddr::V4(who), Some((IpAddr::V4(network), bits))) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            who.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(who), Some((IpAddr::V6(network), bits))) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            who.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

fn parse(network: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match network.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (network, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) => bits.parse().ok()?,
        None => all,
    };
    (bits <= all).then_some((address, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_match_in_both_families() {
        assert!(matches("10.1.2.3", "10.1.2.3"));
        assert!(matches("10.1.2.3", "10.0.0.0/8"));
        assert!(matches("10.1.2.3", "0.0.0.0/0"));
        assert!(!matches("11.1.2.3", "10.0.0.0/8"));
        assert!(matches("2001:db8::7", "2001:db8::/32"));
        assert!(matches("2001:db8::7", "::/0"));
        assert!(!matches("2001:db9::7", "2001:db8::/32"));
        assert!(!matches("10.1.2.3", "::/0"));
        assert!(matches("::ffff:10.1.2.3", "10.0.0.0/8"), "a v4 client on a v6 socket");
        assert!(!matches("nonsense", "10.0.0.0/8"));
    }

    #[test]
    fn bad_forms_are_refused() {
        for bad in ["", "10.1.2", "10.1.2.3/33", "::1/129", "10.1.2.3/", "10.1.2.3/-1", "host"] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
