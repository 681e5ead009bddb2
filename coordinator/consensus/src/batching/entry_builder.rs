//! Builds the next log entry from the commands that wait for one term, within the limits of an entry.
//!
//! Batches stay whole and keep their order. Only of an entry that costs too many steps the rest is put back.
//! It holds at most one entry and one more batch.

use rowlock_state::command::Proposal;
use rowlock_types::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};

use super::{TermBatch, weight};

#[derive(Default)]
pub struct EntryBuilder {
    batch: Option<TermBatch>,
    bytes: usize,
    /// The batch that did not fit: of another term, or too large. The first of the entry behind.
    carry: Option<TermBatch>,
}

impl EntryBuilder {
    pub fn is_empty(&self) -> bool {
        self.batch.is_none()
    }

    /// Nothing more can be added before it is taken.
    pub fn is_full(&self) -> bool {
        let has_all =
            |batch: &TermBatch| batch.proposals.len() >= BATCH_MAX_COMMANDS || self.bytes >= BATCH_MAX_BYTES;
        self.carry.is_some() || self.batch.as_ref().is_some_and(has_all)
    }

    /// The commands that are waiting.
    pub fn commands(&self) -> &[Proposal] {
        self.batch.as_ref().map_or(&[], |batch| &batch.proposals)
    }

    /// Invariant: what is carried is behind a batch, and the bytes are those of the batch.
    fn check(&self) {
        assert!(self.batch.is_some() || self.carry.is_none(), "what is carried is behind a batch");
        debug_assert!(
            self.batch.as_ref().is_none_or(|it| it.proposals.iter().map(weight).sum::<usize>() == self.bytes),
            "the bytes are those of the batch"
        );
    }

    /// Adds a batch. Not to be called when it is full.
    pub fn add(&mut self, batch: TermBatch) {
        assert!(!self.is_full(), "a full entry takes no batch");
        let more: usize = batch.proposals.iter().map(weight).sum();
        let Some(here) = &mut self.batch else {
            (self.batch, self.bytes) = (Some(batch), more);
            return;
        };
        let fits = here.proposals.len() + batch.proposals.len() <= BATCH_MAX_COMMANDS
            && self.bytes + more <= BATCH_MAX_BYTES;
        if here.term != batch.term || !fits {
            self.carry = Some(batch);
            return self.check();
        }
        self.bytes += more;
        here.proposals.extend(batch.proposals);
        self.check();
    }

    /// The term and the commands of the entry, if there are any. What did not fit begins the next one.
    pub fn take(&mut self) -> Option<(u64, Vec<Proposal>)> {
        let batch = self.batch.take()?;
        if let Some(carry) = self.carry.take() {
            self.add(carry);
        }
        assert!(self.carry.is_none(), "what was carried has moved up");
        Some((batch.term, batch.proposals))
    }

    /// What was taken with the last entry and is too much for it: the first of the next one. To be called
    /// before anything is added.
    pub fn put_back(&mut self, rest: TermBatch) {
        assert!(self.carry.is_none(), "what was carried has moved up");
        let behind = self.batch.take();
        self.add(rest);
        match behind {
            Some(behind) if self.is_full() => self.carry = Some(behind),
            Some(behind) => self.add(behind),
            None => {}
        }
        self.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rowlock_proto::SessionId;
    use rowlock_state::command::{Attachment, Command, Origin};

    fn batch(term: u64, count: usize) -> TermBatch {
        let proposal = Proposal {
            origin: Origin::default(),
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command: Command::Noop,
        };
        TermBatch { term, proposals: vec![proposal; count] }
    }

    fn taken(builder: &mut EntryBuilder) -> Option<(u64, usize)> {
        builder.take().map(|(term, proposals)| (term, proposals.len()))
    }

    #[test]
    fn commands_are_batched_up_to_the_limit_and_the_rest_begins_the_next_entry() {
        let mut builder = EntryBuilder::default();
        for count in [100, 200, 200] {
            assert!(!builder.is_full());
            builder.add(batch(1, count));
        }
        builder.add(batch(1, 200));
        assert!(builder.is_full());
        assert_eq!(taken(&mut builder), Some((1, 500)));
        assert_eq!(taken(&mut builder), Some((1, 200)));
        assert!(builder.is_empty());
        assert_eq!(taken(&mut builder), None);
    }

    #[test]
    fn commands_of_another_term_are_never_batched_with_these() {
        let mut builder = EntryBuilder::default();
        builder.add(batch(1, 1));
        builder.add(batch(2, 1));
        assert!(builder.is_full());
        assert_eq!(taken(&mut builder), Some((1, 1)));
        assert_eq!(taken(&mut builder), Some((2, 1)));
    }

    #[test]
    fn what_was_too_much_for_an_entry_is_the_first_of_the_next() {
        for (rest, expected) in
            [(12, &[(1, 512)][..]), (100, &[(1, 100), (1, 500)]), (512, &[(1, 512), (1, 500)])]
        {
            let mut builder = EntryBuilder::default();
            builder.add(batch(1, 512));
            builder.carry = Some(batch(1, 500));
            assert_eq!(taken(&mut builder), Some((1, 512)));
            builder.put_back(batch(1, rest));
            let all: Vec<_> = std::iter::from_fn(|| taken(&mut builder)).collect();
            assert_eq!(all, expected);
        }
        let mut builder = EntryBuilder::default();
        builder.add(batch(1, 10));
        builder.add(batch(2, 10));
        assert_eq!(taken(&mut builder), Some((1, 10)));
        builder.put_back(batch(1, 5));
        assert_eq!((taken(&mut builder), taken(&mut builder)), (Some((1, 5)), Some((2, 10))));
    }

    #[test]
    fn an_entry_is_full_with_as_many_commands_as_it_may_have() {
        let mut builder = EntryBuilder::default();
        builder.add(batch(1, BATCH_MAX_COMMANDS));
        assert!(builder.is_full());
        assert_eq!(taken(&mut builder), Some((1, BATCH_MAX_COMMANDS)));
    }
}
