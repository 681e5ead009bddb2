//! Request ids. The same id produces the same queue znode and the same attempt number on every node, so a
//! retry takes effect once.

use std::fmt::Write as _;
use std::str::FromStr;

use rowlock_env::rng;
use rowlock_proto::SessionId;
use rowlock_proto::lock::Mode;
use sha2::{Digest as _, Sha256};

use super::page::ATTEMPT_BITS;
use super::{Refusal, Which};

const LEN_MAX: usize = 64;

/// Client's name of one attempt: 1 to 64 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestId(String);

impl RequestId {
    pub(super) fn random() -> Self {
        let mut bytes = [0; 16];
        rng::fill(&mut bytes);
        RequestId(hex(&bytes))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the queue znode without its number, in the form of Curator's names.
    pub(super) fn prefix(&self, lease: SessionId, mode: Mode) -> String {
        let kind = match mode {
            Mode::Exclusive => "lock-".to_owned(),
            Mode::Shared => "__READ__".to_owned(),
            Mode::Permits(1) => "permit-".to_owned(),
            Mode::Permits(count) => format!("{count}-permit-"),
        };
        self.start(lease) + &kind
    }

    /// Returns the beginning of the queue znode's name, the same for all modes. The session id is part of the
    /// hash: two leases with equal request ids have different names, so a path found by `Rowlock-Fence`
    /// belongs to one holder only.
    pub(super) fn start(&self, lease: SessionId) -> String {
        let id = hex(&digest(&self.0, &[&lease.0.to_be_bytes()])[..16]);
        let at = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-");
        format!("_c_{at}-")
    }

    /// Returns the number of the attempt among the attempts of its lease (`page.rs`), never 0. The number
    /// depends on the lock, so a client may use one id for several locks.
    pub(super) fn attempt(&self, lock: &str, waits: bool) -> u64 {
        number(&digest(&self.0, &[lock.as_bytes(), &[u8::from(waits)]]))
    }
}

/// Kinds of release. Each kind has its own attempt number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giving {
    Held = 2,
    /// Leaves the queue without holding.
    Place = 3,
}

impl Which {
    /// Returns the number of the release among the attempts of its lease.
    pub(super) fn attempt(&self, lock: &str, giving: Giving) -> u64 {
        let (id, token) = match self {
            Which::Request(id) => (id.as_str(), String::new()),
            // Distinct from every request: a request's id is not empty.
            Which::Token(token) => ("", token.0.to_string()),
        };
        number(&digest(id, &[lock.as_bytes(), &[giving as u8], token.as_bytes()]))
    }
}

fn digest(id: &str, more: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new().chain_update(id);
    for part in more {
        // No id contains a zero byte, so two different lists of parts never produce the same bytes.
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
    fn same_id_gives_same_name_and_number_on_every_node() {
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
