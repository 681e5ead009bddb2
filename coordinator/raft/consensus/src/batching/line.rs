//! Proposals queued for the next log entry, or for the next batch to the leader.

use std::collections::VecDeque;

use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_state::command::Proposal;

use super::weight;
use crate::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};

/// Queue of proposals. Invariant: the queue keeps the order of the proposals.
#[derive(Debug)]
pub struct ProposalQueue {
    /// Each with its weight, computed once.
    waiting: VecDeque<(usize, Proposal)>,
    bytes: usize,
    /// Time when the first proposal entered the empty queue.
    since: Instant,
}

impl Default for ProposalQueue {
    fn default() -> ProposalQueue {
        ProposalQueue { waiting: VecDeque::new(), bytes: 0, since: time::now() }
    }
}

impl ProposalQueue {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns how many more commands, and how many more bytes, fit into one entry with the queued ones. Zero
    /// means full.
    pub fn room(&self) -> (usize, usize) {
        assert!(!self.is_empty() || self.bytes == 0, "an empty line takes no room");
        let (commands, bytes) = (BATCH_MAX_COMMANDS, BATCH_MAX_BYTES);
        (commands.saturating_sub(self.len()), bytes.saturating_sub(self.bytes))
    }

    pub fn is_full(&self) -> bool {
        matches!(self.room(), (0, _) | (_, 0))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Proposal> {
        self.waiting.iter().map(|(_, proposal)| proposal)
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Appends a proposal of this weight.
    pub fn push(&mut self, weight: usize, proposal: Proposal) {
        if self.is_empty() {
            self.since = time::now();
        }
        self.bytes += weight;
        self.waiting.push_back((weight, proposal));
    }

    pub fn extend(&mut self, proposals: Vec<Proposal>) {
        proposals.into_iter().for_each(|proposal| self.push(weight(&proposal), proposal));
    }

    /// Removes the proposals of the next entry. The first one fits whatever its size.
    pub fn take(&mut self) -> Vec<Proposal> {
        let mut bytes = 0;
        let fits = |(weight, _): &&(usize, Proposal)| {
            bytes += weight;
            decides!("batch-takes-write", bytes == *weight || bytes <= BATCH_MAX_BYTES)
        };
        let is_one = self.len() > 1 && choice::taken(Choice::EntryOfOne, 4);
        let most = if is_one { 1 } else { BATCH_MAX_COMMANDS };
        let count = self.waiting.iter().take(most).take_while(fits).count();
        let taken = self.waiting.drain(..count).map(|(weight, proposal)| {
            self.bytes -= weight;
            proposal
        });
        let taken: Vec<Proposal> = taken.collect();
        assert!(!taken.is_empty() || self.waiting.is_empty(), "the first goes whatever its size");
        assert!(!self.waiting.is_empty() || self.bytes == 0, "an empty line has no bytes");
        taken
    }

    /// Returns unsent proposals to the front of the queue.
    pub fn push_front(&mut self, proposals: Vec<Proposal>) {
        for proposal in proposals.into_iter().rev() {
            let weight = weight(&proposal);
            self.bytes += weight;
            self.waiting.push_front((weight, proposal));
        }
    }

    /// Drops the proposals that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&Proposal) -> bool) {
        let before = self.bytes;
        self.waiting.retain(|(_, proposal)| keep(proposal));
        self.bytes = self.waiting.iter().map(|(weight, _)| weight).sum();
        assert!(self.bytes <= before, "what is dropped takes its bytes with it");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rowlock_proto::Request;
    use rowlock_proto::request::SetData;
    use rowlock_proto::{SessionId, Version};
    use rowlock_state::command::{Attachment, Command, Origin};

    use super::*;

    /// Creates proposal number `request` with `bytes` of data.
    fn proposal(request: u64, bytes: usize) -> Proposal {
        let data = Some(Bytes::from(vec![0; bytes]));
        let set = SetData { path: "/a".to_owned(), data, version: Version::ANY };
        Proposal {
            origin: Origin { request, ..Origin::default() },
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command: Command::Client(Request::SetData(set)),
        }
    }

    fn line(count: u64, bytes: usize) -> ProposalQueue {
        let mut line = ProposalQueue::default();
        line.extend((0..count).map(|request| proposal(request, bytes)).collect());
        line
    }

    fn requests(proposals: &[Proposal]) -> Vec<u64> {
        proposals.iter().map(|proposal| proposal.origin.request).collect()
    }

    #[test]
    fn an_entry_takes_its_limit_and_the_rest_follows() {
        let most = BATCH_MAX_COMMANDS as u64;
        let mut small = line(most + 100, 0);
        assert!(small.is_full() && line(most, 0).is_full() && !line(most - 1, 0).is_full());
        assert_eq!(requests(&small.take()), (0..most).collect::<Vec<_>>());
        assert_eq!(requests(&small.take()), (most..most + 100).collect::<Vec<_>>());
        assert!(small.is_empty() && small.take().is_empty());
        let mut large = line(5, BATCH_MAX_BYTES / 2 - 100);
        assert_eq!([2, 2, 1].map(|_| large.take().len()), [2, 2, 1]);
        let mut larger = line(2, 2 * BATCH_MAX_BYTES);
        assert_eq!([larger.take().len(), larger.take().len()], [1, 1], "one goes whatever its size");
    }

    #[test]
    fn returned_proposals_come_first_in_the_next_entry() {
        let mut line = line(600, 10);
        let mut taken = line.take();
        line.push_front(taken.split_off(100));
        assert_eq!(requests(&line.take()), (100..600).collect::<Vec<_>>());
        assert_eq!(line.room(), (BATCH_MAX_COMMANDS, BATCH_MAX_BYTES), "nothing is left, not even bytes");
    }

    #[test]
    fn dropped_proposals_take_no_room() {
        let mut line = line(100, 1_000);
        line.retain(|proposal| proposal.origin.request % 2 == 1);
        assert_eq!(line.room().0, BATCH_MAX_COMMANDS - 50);
        assert_eq!(requests(&line.take()), (0..50).map(|nth| 2 * nth + 1).collect::<Vec<_>>());
        assert_eq!(line.room().1, BATCH_MAX_BYTES);
    }
}
