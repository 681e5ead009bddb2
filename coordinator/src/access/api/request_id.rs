//! What a request is called. The same id makes the same queue znode and the same attempt, on whatever
//! node it arrives: so a retry takes effect once.

use std::fmt::Write as _;
use std::str::FromStr;

use rowlock_env::rng;
use rowlock_proto::SessionId;
use rowlock_proto::lock::Mode;
use sha2::{Digest as _, Sha256};

use super::page::ATTEMPT_BITS;
use super::{Refusal, Which};

const LEN_MAX: usize = 64;

/// The client's name of one attempt: 1 to 64 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestId(String);

impl RequestId {
    /// Returns a random, unique one.
    pub(super) fn random() -> Self {
        let mut bytes = [0; 16];
        rng::fill(&mut bytes);
        RequestId(hex(&bytes))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the queue znode before its number: as clients in the form of Curator call theirs.
    pub(super) fn prefix(&self, lease: SessionId, mode: Mode) -> String {
        let kind = match mode {
            Mode::Exclusive => "lock-".to_owned(),
            Mode::Shared => "__READ__".to_owned(),
            Mode::Permits(1) => "permit-".to_owned(),
            Mode::Permits(count) => format!("{count}-permit-"),
        };
        self.start(lease) + &kind
    }

    /// How that name begins, in whatever mode. Leases have names of their own, whatever ids their clients
    /// choose: a path that is found stays that of one holder (`Rowlock-Fence` of a write).
    pub(super) fn start(&self, lease: SessionId) -> String {
        let id = hex(&digest(&self.0, &[&lease.0.to_be_bytes()])[..16]);
        let at = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-");
        format!("_c_{at}-")
    }

    /// Number of the attempt among those of its lease (`page.rs`): never 0, and another one for another lock,
    /// so that a client may use one id for several.
    pub(super) fn attempt(&self, lock: &str, waits: bool) -> u64 {
        number(&digest(&self.0, &[lock.as_bytes(), &[u8::from(waits)]]))
    }
}

/// What a release of a lease does: each has a number of its own, as attempts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giving {
    Held = 2,
    /// It leaves the queue.
    Place = 3,
}

impl Which {
    /// Number of the release among the attempts of its lease.
    pub(super) fn attempt(&self, lock: &str, giving: Giving) -> u64 {
        let (id, token) = match self {
            Which::Request(id) => (id.as_str(), String::new()),
            // No request has an empty id.
            Which::Token(token) => ("", token.0.to_string()),
        };
        number(&digest(id, &[lock.as_bytes(), &[giving as u8], token.as_bytes()]))
    }
}

fn digest(id: &str, more: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new().chain_update(id);
    for part in more {
        // No id has a zero byte, so the parts cannot be cut in two ways.
        hash = hash.chain_update([0]).chain_update(part);
    }
    hash.finalize().into()
}

fn number(digest: &[u8; 32]) -> u64 {
    let (first, _) = digest.split_first_chunk().expect("a SHA-256 has 32 bytes");
    u64::from_be_bytes(*first) >> (u64::BITS - ATTEMPT_BITS) | 1
}

impl FromStr for RequestId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let fits = (1..=LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        let wrong = || Refusal::Bad(format!("request_id is not 1 to {LEN_MAX} visible ASCII characters"));
        if fits { Ok(RequestId(text.to_owned())) } else { Err(wrong()) }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use rowlock_proto::FencingToken;

    use super::*;

    #[test]
    fn an_id_makes_the_same_name_and_number_everywhere_and_another_lock_another_number() {
        let (one, other): (RequestId, RequestId) = ("job-7".parse().unwrap(), "job-8".parse().unwrap());
        let prefix = |id: &RequestId, lease| id.prefix(SessionId(lease), Mode::Exclusive);
        assert_eq!(prefix(&one, 1), prefix(&"job-7".parse().unwrap(), 1));
        assert!(prefix(&one, 1).ends_with("-lock-"));
        assert_ne!(prefix(&one, 1), prefix(&other, 1));
        assert_ne!(prefix(&one, 1), prefix(&one, 2), "a lease's names are its own");
        let (by_id, by_token) = (Which::Request("job-7".to_owned()), Which::Token(FencingToken(7)));
        let tags = [
            one.attempt("/a", true),
            one.attempt("/b", true),
            one.attempt("/a", false),
            other.attempt("/a", true),
            by_id.attempt("/a", Giving::Held),
            by_id.attempt("/a", Giving::Place),
            by_token.attempt("/a", Giving::Held),
            by_token.attempt("/b", Giving::Held),
            Which::Token(FencingToken(8)).attempt("/a", Giving::Held),
        ];
        for (at, tag) in tags.iter().enumerate() {
            assert!(*tag > 0 && *tag >> ATTEMPT_BITS == 0 && !tags[..at].contains(tag), "{tags:?}");
        }
        for wrong in ["", "a b", "\u{e9}", "a\n", &"x".repeat(65)] {
            assert!(wrong.parse::<RequestId>().is_err(), "{wrong:?}");
        }
    }
}
