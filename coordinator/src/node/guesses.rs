//! Rate limit for wrong passwords per host (superuser and SASL users), against guessing.
//!
//! A right password is always accepted from a host with an earlier success of the same user: otherwise a
//! guessing client would lock out all users behind the same proxy. So guesses are unlimited for a client that
//! shares an address with the attacked user.

use std::collections::BTreeSet;
use std::net::IpAddr;

use parking_lot::Mutex;
use rowlock_env::rate::{self, Bucket, PerHost};
use rowlock_env::time::Instant;

use crate::limits::{HOSTS_COUNTED_MAX, WRONG_PASSWORDS_PER_SECOND};

/// Result of a password check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    Wrong,
    /// Too many wrong passwords from this host; the result does not reveal whether the password was right.
    TooMany,
}

/// Hosts with recent wrong passwords, and users with a success.
#[derive(Debug)]
pub(crate) struct PasswordThrottle {
    wrong: PerHost,
    /// Host and user of each success.
    proven: Mutex<BTreeSet<(IpAddr, String)>>,
}

impl Default for PasswordThrottle {
    fn default() -> Self {
        let bucket = Bucket::new(WRONG_PASSWORDS_PER_SECOND, WRONG_PASSWORDS_PER_SECOND);
        PasswordThrottle { wrong: PerHost::new(bucket, HOSTS_COUNTED_MAX), proven: Mutex::default() }
    }
}

impl PasswordThrottle {
    /// Returns the result of an attempt for the client. A wrong password counts against the host.
    pub(crate) fn check(&self, addr: IpAddr, user: &str, is_right: bool, now: Instant) -> Verdict {
        let key = (rate::host(addr), user.to_owned());
        if is_right && self.proven.lock().contains(&key) {
            return Verdict::Right;
        }
        let counts = self
            .wrong
            .with(addr, now, |bucket| if is_right { bucket.left(now) > 0 } else { bucket.take(now) });
        match (counts, is_right) {
            (false, _) => Verdict::TooMany,
            (true, false) => Verdict::Wrong,
            (true, true) => {
                let mut proven = self.proven.lock();
                if proven.len() >= HOSTS_COUNTED_MAX {
                    proven.pop_first();
                }
                proven.insert(key);
                Verdict::Right
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn guessing_host_locks_out_itself_but_no_proven_user() {
        let (throttle, now) = (PasswordThrottle::default(), Instant::now());
        let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!(throttle.check(here, "super", true, now), Verdict::Right);
        for _ in 0..WRONG_PASSWORDS_PER_SECOND {
            assert_eq!(throttle.check(here, "super", false, now), Verdict::Wrong);
        }
        assert_eq!(throttle.check(here, "super", false, now), Verdict::TooMany);
        assert_eq!(throttle.check(here, "super", true, now), Verdict::Right, "as before");
        assert_eq!(throttle.check(here, "bob", true, now), Verdict::TooMany, "it may be a guess");
        assert_eq!(throttle.check(there, "bob", true, now), Verdict::Right);
        assert_eq!(throttle.check(here, "bob", true, now + Duration::from_secs(1)), Verdict::Right);
    }

    #[test]
    fn proven_users_are_bounded() {
        let (throttle, now) = (PasswordThrottle::default(), Instant::now());
        for n in 0..2 * HOSTS_COUNTED_MAX as u32 {
            assert_eq!(throttle.check(IpAddr::from(n.to_be_bytes()), "super", true, now), Verdict::Right);
        }
        assert_eq!(throttle.proven.lock().len(), HOSTS_COUNTED_MAX);
    }
}
