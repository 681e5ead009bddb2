//! How often a host may try a secret that people choose (a password of the superuser or of a SASL user), so
//! that none is found by trying.
//!
//! A right password always counts from a host where it has counted before: otherwise a client that guesses
//! would lock out everyone behind the same proxy. So guesses are unlimited for a client that shares an
//! address with the user it attacks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use parking_lot::Mutex;
use rowlock_env::rate::{self, Bucket, PerHost};
use rowlock_env::time::Instant;
use rowlock_types::limits::{HOSTS_COUNTED_MAX, WRONG_PASSWORDS_PER_SECOND};

/// What becomes of a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    Wrong,
    /// Its host has been wrong too often; whether it was right is not said.
    TooMany,
}

/// The hosts that were wrong lately, and the users who were right.
#[derive(Debug)]
pub(crate) struct Guesses {
    wrong: PerHost,
    /// Who has proven to be whom, from where.
    proven: Mutex<BTreeSet<(IpAddr, String)>>,
}

impl Default for Guesses {
    fn default() -> Self {
        let bucket = Bucket::new(WRONG_PASSWORDS_PER_SECOND, WRONG_PASSWORDS_PER_SECOND);
        Guesses { wrong: PerHost::new(bucket, HOSTS_COUNTED_MAX), proven: Mutex::default() }
    }
}

impl Guesses {
    /// Judges a password for this user.
    pub(crate) fn judge(&self, addr: IpAddr, user: &str, is_right: bool, now: Instant) -> Verdict {
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
    fn a_host_that_guesses_locks_out_itself_but_no_user_who_was_right_there_before() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!(guesses.judge(here, "super", true, now), Verdict::Right);
        for _ in 0..WRONG_PASSWORDS_PER_SECOND {
            assert_eq!(guesses.judge(here, "super", false, now), Verdict::Wrong);
        }
        assert_eq!(guesses.judge(here, "super", false, now), Verdict::TooMany);
        assert_eq!(guesses.judge(here, "super", true, now), Verdict::Right, "as before");
        assert_eq!(guesses.judge(here, "bob", true, now), Verdict::TooMany, "it may be a guess");
        assert_eq!(guesses.judge(there, "bob", true, now), Verdict::Right);
        assert_eq!(guesses.judge(here, "bob", true, now + Duration::from_secs(1)), Verdict::Right);
    }

    #[test]
    fn users_are_remembered_up_to_a_bound() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        for n in 0..2 * HOSTS_COUNTED_MAX as u32 {
            assert_eq!(guesses.judge(IpAddr::from(n.to_be_bytes()), "super", true, now), Verdict::Right);
        }
        assert_eq!(guesses.proven.lock().len(), HOSTS_COUNTED_MAX);
    }
}
