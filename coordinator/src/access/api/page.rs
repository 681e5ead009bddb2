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

use rowlock_state::command::Attachment;

use super::Refusal;

/// Capacity of a page, and the least number of remembered attempts. Two pages are fewer than
/// `rowlock_state::OUTCOMES_MAX`; the rest is reserve for pending requests during a reattachment.
pub(super) const PAGE_LEN: usize = 384;
/// Lower bits of a number: the attempt. The attachment is above.
pub(super) const ATTEMPT_BITS: u32 = 43;
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
    use super::*;

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
