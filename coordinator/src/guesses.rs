//! How often an address may be wrong about a secret (the superuser's password, a token of HTTP), so that none
//! is found by trying.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;
use rowlock_env::time::Instant;
use rowlock_types::limits::{GUESSERS_MAX, GUESSES_MAX, GUESSES_WITHIN};

/// Addresses that were wrong lately.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    lately: Mutex<BTreeMap<IpAddr, Wrong>>,
}

#[derive(Debug)]
struct Wrong {
    since: Instant,
    times: u32,
}

impl Wrong {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_since(self.since) >= GUESSES_WITHIN
    }
}

impl Guesses {
    /// Whether a secret from there is looked at now. If not, a right one fails too: else guessing would go
    /// on.
    pub(crate) fn may_try(&self, addr: IpAddr, now: Instant) -> bool {
        let lately = self.lately.lock();
        let key = key(&lately, addr);
        lately.get(&key).is_none_or(|wrong| wrong.is_over(now) || wrong.times < GUESSES_MAX)
    }

    /// A secret from there was wrong.
    pub(crate) fn wrong(&self, addr: IpAddr, now: Instant) {
        let mut lately = self.lately.lock();
        if lately.len() >= GUESSERS_MAX {
            lately.retain(|_, wrong| !wrong.is_over(now));
        }
        let key = key(&lately, addr);
        let wrong = lately.entry(key).or_insert(Wrong { since: now, times: 0 });
        if wrong.is_over(now) {
            *wrong = Wrong { since: now, times: 0 };
        }
        wrong.times += 1;
    }
}

/// A host of IPv6 has a whole /64. Beyond the bound of addresses all new ones count as one.
fn key(lately: &BTreeMap<IpAddr, Wrong>, addr: IpAddr) -> IpAddr {
    let key = match addr.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        ip => ip,
    };
    let fits = lately.contains_key(&key) || lately.len() < GUESSERS_MAX;
    if fits { key } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn v4(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    fn tries(guesses: &Guesses, addr: IpAddr, now: Instant) -> usize {
        (0..1_000).take_while(|_| guesses.may_try(addr, now)).map(|_| guesses.wrong(addr, now)).count()
    }

    #[test]
    fn an_address_may_be_wrong_so_often_in_a_second_and_others_are_not_concerned() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let most = GUESSES_MAX as usize;
        assert_eq!(tries(&guesses, v4(1), now), most);
        assert_eq!(tries(&guesses, v4(1), now + Duration::from_millis(999)), 0);
        assert_eq!(tries(&guesses, v4(2), now), most);
        assert_eq!(tries(&guesses, v4(1), now + GUESSES_WITHIN), most);
        let of_host = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]);
        assert_eq!(tries(&guesses, of_host(1), now), most);
        assert_eq!(tries(&guesses, of_host(2), now), 0, "a /64 is one host");
    }

    #[test]
    fn very_many_addresses_are_remembered_up_to_a_bound_and_then_count_as_one() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let all = u32::try_from(2 * GUESSERS_MAX).unwrap();
        let tried: usize = (0..all).map(|n| tries(&guesses, v4(n), now)).sum();
        assert!(guesses.lately.lock().len() <= GUESSERS_MAX + 1);
        assert_eq!(tried, (GUESSERS_MAX + 1) * GUESSES_MAX as usize);
        assert_eq!(tries(&guesses, v4(all), now + GUESSES_WITHIN), GUESSES_MAX as usize);
        assert_eq!(guesses.lately.lock().len(), 1);
    }
}
