//! Proposals that wait for the next log entry, or for the next batch to the leader.

use std::collections::VecDeque;

use rowlock_env::choice::{self, Choice};
use rowlock_env::time::{self, Instant};
use rowlock_state::command::Proposal;
use rowlock_types::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};

use super::weight;

/// A queue of proposals. Invariant: it keeps their order.
#[derive(Debug)]
pub struct ProposalLine {
    /// Each with its weight, counted once.
    waiting: VecDeque<(usize, Proposal)>,
    /// Sum of the weights.
    bytes: usize,
    /// When the first came into the empty line.
    since: Instant,
}

impl Default for ProposalLine {
    fn default() -> ProposalLine {
        ProposalLine { waiting: VecDeque::new(), bytes: 0, since: time::now() }
    }
}

impl ProposalLine {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many commands, and how many bytes of them, an entry takes beside those in line. Zero: it is full.
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

    /// Adds a proposal of this weight behind all others.
    pub fn push(&mut self, weight: usize, proposal: Proposal) {
        if self.is_empty() {
            self.since = time::now();
        }
        self.bytes += weight;
        self.waiting.push_back((weight, proposal));
    }

    /// Adds them behind all others.
    pub fn extend(&mut self, proposals: Vec<Proposal>) {
        proposals.into_iter().for_each(|proposal| self.push(weight(&proposal), proposal));
    }

    /// Takes as many as go together. The first goes whatever its size.
    pub fn take(&mut self) -> Vec<Proposal> {
        let mut bytes = 0;
        let fits = |(weight, _): &&(usize, Proposal)| {
            bytes += weight;
            bytes == *weight || bytes <= BATCH_MAX_BYTES
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

    /// Puts back in front what was taken and has not left.
    pub fn put_back(&mut self, proposals: Vec<Proposal>) {
        for proposal in proposals.into_iter().rev() {
            let weight = weight(&proposal);
            self.bytes += weight;
            self.waiting.push_front((weight, proposal));
        }
    }

    /// Drops those that are not to be kept.
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

    /// Number `request`, with this much data.
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

    fn line(count: u64, bytes: usize) -> ProposalLine {
        let mut line = ProposalLine::default();
        line.extend((0..count).map(|request| proposal(request, bytes)).collect());
        line
    }

    fn requests(proposals: &[Proposal]) -> Vec<u64> {
        proposals.iter().map(|proposal| proposal.origin.request).collect()
    }

    #[test]
    fn as_many_go_together_as_an_entry_takes_and_the_rest_is_the_next() {
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
    fn what_was_too_much_for_an_entry_is_the_first_of_the_next() {
        let mut line = line(600, 10);
        let mut taken = line.take();
        line.put_back(taken.split_off(100));
        assert_eq!(requests(&line.take()), (100..600).collect::<Vec<_>>());
        assert_eq!(line.room(), (BATCH_MAX_COMMANDS, BATCH_MAX_BYTES), "nothing is left, not even bytes");
    }

    #[test]
    fn what_is_not_kept_takes_no_room() {
        let mut line = line(100, 1_000);
        line.retain(|proposal| proposal.origin.request % 2 == 1);
        assert_eq!(line.room().0, BATCH_MAX_COMMANDS - 50);
        assert_eq!(requests(&line.take()), (0..50).map(|nth| 2 * nth + 1).collect::<Vec<_>>());
        assert_eq!(line.room().1, BATCH_MAX_BYTES);
    }
}
