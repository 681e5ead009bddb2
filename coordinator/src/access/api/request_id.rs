//! Request ids. The same id produces the same queue znode and the same attempt number on every node, so a
//! retry takes effect once.
//!
//! Deduplication of a lease's attempts: a late copy of an acquire takes nothing, and a copy of a release gets
//! the outcome of the first.
//!
//! The state machine keeps the outcomes of tagged writes and forgets outcomes from the lowest number upward.
//! Request ids have no order, so attempts are grouped in *pages*: a page contains the attempts of one
//! attachment of the session, and the attachment forms the upper bits of their numbers. When a page is full,
//! the session is reattached, and pages before the newest [`PAGE_LEN`] attempts are forgotten.
//!
//! Invariant: an attempt is on one page only. The state machine rejects commands of an older attachment, so a
//! node that has applied a reattachment has also applied all attempts of older pages, and finds each copy in
//! its local state without a request to another node.

use std::fmt::Write as _;
use std::str::FromStr;

use rowlock_env::rng;
use rowlock_proto::SessionId;
use rowlock_proto::lock::Mode;
use rowlock_state::command::Attachment;
use sha2::{Digest as _, Sha256};

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

    /// Returns the number of the attempt among the attempts of its lease, never 0. The number
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

/// Capacity of a page, and the least number of remembered attempts. Two pages are fewer than
/// `rowlock_state::OUTCOMES_MAX`; the rest is reserve for pending requests during a reattachment.
pub(super) const PAGE_LEN: usize = 384;
/// Lower bits of a number: the attempt. The attachment is above.
const ATTEMPT_BITS: u32 = 43;
/// Bound of the attachment: the number must fit into the range open to all clients.
const ATTACHMENTS_MAX: u64 = 1 << (63 - ATTEMPT_BITS);

/// Assignment of an attempt to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageEntry {
    /// Number of the attempt's write. The state machine may forget older numbers up to `acked`.
    Write { id: u64, acked: u64 },
    /// Full page: reattach the session, then retry.
    Turn,
}

/// Finds the attempt among the session's kept writes (sorted), or assigns the attempt to the present page.
///
/// # Errors
/// [`Refusal::Spent`]: the lease has used a million pages.
pub(super) fn entry(attachment: Attachment, kept: &[u64], attempt: u64) -> Result<PageEntry, Refusal> {
    assert!(
        attempt > 0 && attempt >> ATTEMPT_BITS == 0,
        "an attempt's number is not 0 and fits into its bits"
    );
    debug_assert!(kept.is_sorted(), "the writes of a session are in order");
    if let Some(id) = find(kept, attempt) {
        return Ok(PageEntry::Write { id, acked: 0 });
    }
    if attachment.0 >= ATTACHMENTS_MAX {
        return Err(Refusal::Spent);
    }
    let page = |id: &u64| id >> ATTEMPT_BITS;
    if kept.iter().filter(|id| page(id) == attachment.0).count() >= PAGE_LEN {
        return Ok(PageEntry::Turn);
    }
    // Only whole pages are forgotten, and no page with one of the newest attempts.
    let first = kept.len().checked_sub(PAGE_LEN).map_or(0, |at| page(&kept[at]));
    let acked = (first.min(attachment.0) << ATTEMPT_BITS).saturating_sub(1);
    Ok(PageEntry::Write { id: attachment.0 << ATTEMPT_BITS | attempt, acked })
}

/// Finds the number of this attempt's write among the session's kept writes.
pub(super) fn find(kept: &[u64], attempt: u64) -> Option<u64> {
    let mask = (1 << ATTEMPT_BITS) - 1;
    kept.iter().copied().find(|id| id & mask == attempt)
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

    fn number(page: u64, attempt: u64) -> u64 {
        page << ATTEMPT_BITS | attempt
    }

    #[test]
    fn old_attempt_keeps_its_page_and_new_attempt_goes_to_newest() {
        let kept = [number(1, 7), number(2, 5)];
        assert_eq!(entry(Attachment(3), &kept, 7), Ok(PageEntry::Write { id: number(1, 7), acked: 0 }));
        assert_eq!(entry(Attachment(3), &kept, 8), Ok(PageEntry::Write { id: number(3, 8), acked: 0 }));
        assert_eq!(entry(Attachment(ATTACHMENTS_MAX), &kept, 8), Err(Refusal::Spent));
    }

    #[test]
    fn full_page_is_forgotten_once_the_next_page_is_full() {
        let len = PAGE_LEN as u64;
        let mut kept: Vec<u64> = (1..=len).map(|attempt| number(4, attempt)).collect();
        assert_eq!(entry(Attachment(4), &kept, len + 1), Ok(PageEntry::Turn));
        let acked = number(4, 0) - 1;
        assert_eq!(entry(Attachment(5), &kept, 1), Ok(PageEntry::Write { id: number(4, 1), acked: 0 }));
        let first = PageEntry::Write { id: number(5, len + 1), acked };
        assert_eq!(entry(Attachment(5), &kept, len + 1), Ok(first));
        kept.extend((len + 1..2 * len).map(|attempt| number(5, attempt)));
        let last = PageEntry::Write { id: number(5, 2 * len), acked };
        assert_eq!(entry(Attachment(5), &kept, 2 * len), Ok(last), "the older page is still needed");
        kept.push(number(5, 2 * len));
        assert_eq!(entry(Attachment(5), &kept, 2 * len + 1), Ok(PageEntry::Turn));
        let acked = number(5, 0) - 1;
        let next = PageEntry::Write { id: number(6, 2 * len + 1), acked };
        assert_eq!(entry(Attachment(6), &kept, 2 * len + 1), Ok(next));
    }
}
