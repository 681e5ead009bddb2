//! Which attempts of a lease the cluster remembers, so that a late copy of an acquire takes nothing, and a
//! copy of a release says what the first one did.
//!
//! What is remembered is the outcomes of tagged writes, which the state machine forgets from the lowest
//! number upwards. Ids of requests have no order of their own, so attempts are gathered in *pages*: a page is
//! the attempts that were made under one attachment of the session, and the attachment is the upper part of
//! their numbers. A full page is turned by attaching the session again, and pages before the newest
//! [`PAGE_LEN`] attempts are forgotten.
//!
//! Invariant: one attempt is on one page. The log refuses commands of an older attachment. So a node that
//! knows of a new page has all attempts of the older ones, and finds a copy there. That is why no node needs
//! to ask another one.

use rowlock_state::command::Attachment;

use super::Refusal;

/// Attempts that fill a page; as many of the newest ones are remembered at least. Two pages are less
/// than `rowlock_state::OUTCOMES_MAX`, and leave room for requests that are under way while one is turned.
pub(super) const PAGE_LEN: usize = 384;
/// Lower bits of a number, for the attempt; the attachment is above.
pub(super) const ATTEMPT_BITS: u32 = 43;
/// More attachments have no place in a number that every client could have chosen.
const ATTACHMENTS_MAX: u64 = 1 << (63 - ATTEMPT_BITS);

/// Where an attempt belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageEntry {
    /// It is the write of this number. Up to `acked` the older ones may be forgotten.
    Write { id: u64, acked: u64 },
    /// The page is full: attach the session again, and retry.
    Turn,
}

/// Finds the attempt among the writes that the session keeps (in order), or gives it a place.
///
/// # Errors
/// [`Refusal::Spent`]: the lease has had a million pages.
pub(super) fn entry(attachment: Attachment, kept: &[u64], attempt: u64) -> Result<PageEntry, Refusal> {
    assert!(attempt > 0 && attempt >> ATTEMPT_BITS == 0, "an attempt has a number of its own");
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
    // Whole pages are forgotten, and none of which one of the newest attempts is.
    let first = kept.len().checked_sub(PAGE_LEN).map_or(0, |at| page(&kept[at]));
    let acked = (first.min(attachment.0) << ATTEMPT_BITS).saturating_sub(1);
    Ok(PageEntry::Write { id: attachment.0 << ATTEMPT_BITS | attempt, acked })
}

/// The write that this attempt was, among those that the session keeps.
pub(super) fn find(kept: &[u64], attempt: u64) -> Option<u64> {
    let mask = (1 << ATTEMPT_BITS) - 1;
    kept.iter().copied().find(|id| id & mask == attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(page: u64, attempt: u64) -> u64 {
        page << ATTEMPT_BITS | attempt
    }

    #[test]
    fn an_attempt_is_found_on_an_older_page_and_a_new_one_comes_on_the_newest() {
        let kept = [number(1, 7), number(2, 5)];
        assert_eq!(entry(Attachment(3), &kept, 7), Ok(PageEntry::Write { id: number(1, 7), acked: 0 }));
        assert_eq!(entry(Attachment(3), &kept, 8), Ok(PageEntry::Write { id: number(3, 8), acked: 0 }));
        assert_eq!(entry(Attachment(ATTACHMENTS_MAX), &kept, 8), Err(Refusal::Spent));
    }

    #[test]
    fn a_full_page_is_turned_and_goes_when_the_next_one_is_full() {
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
