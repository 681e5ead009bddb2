//! The log entry that is being made: what is waiting for one term, within the limits of an entry.
//!
//! Parcels stay whole and in their order, but for an entry that is too dear: its rest comes back. Holds at
//! most one entry and one parcel more.

use rowlock_state::command::Proposal;
use rowlock_types::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};

use super::{Parcel, weight};

/// See the module.
#[derive(Default)]
pub struct Next {
    parcel: Option<Parcel>,
    bytes: usize,
    /// The parcel that did not fit: of another term, or too large. The first of the entry behind.
    carry: Option<Parcel>,
}

impl Next {
    /// Nothing is waiting.
    pub fn is_empty(&self) -> bool {
        self.parcel.is_none()
    }

    /// Nothing more can be added before it is taken.
    pub fn is_full(&self) -> bool {
        let has_all =
            |parcel: &Parcel| parcel.proposals.len() >= BATCH_MAX_COMMANDS || self.bytes >= BATCH_MAX_BYTES;
        self.carry.is_some() || self.parcel.as_ref().is_some_and(has_all)
    }

    /// The commands that are waiting.
    pub fn commands(&self) -> &[Proposal] {
        self.parcel.as_ref().map_or(&[], |parcel| &parcel.proposals)
    }

    /// Adds a parcel. Not to be called when it is full.
    pub fn add(&mut self, parcel: Parcel) {
        assert!(!self.is_full(), "a full entry takes no parcel");
        let more: usize = parcel.proposals.iter().map(weight).sum();
        let Some(here) = &mut self.parcel else {
            (self.parcel, self.bytes) = (Some(parcel), more);
            return;
        };
        let fits = here.proposals.len() + parcel.proposals.len() <= BATCH_MAX_COMMANDS
            && self.bytes + more <= BATCH_MAX_BYTES;
        if here.term != parcel.term || !fits {
            self.carry = Some(parcel);
            return;
        }
        self.bytes += more;
        here.proposals.extend(parcel.proposals);
    }

    /// The term and the commands of the entry, if there are any. What did not fit begins the next one.
    pub fn take(&mut self) -> Option<(u64, Vec<Proposal>)> {
        let parcel = self.parcel.take()?;
        if let Some(carry) = self.carry.take() {
            self.add(carry);
        }
        Some((parcel.term, parcel.proposals))
    }

    /// What was taken with the last entry and is too much for it: the first of the next one. To be called
    /// before anything is added.
    pub fn put_back(&mut self, rest: Parcel) {
        assert!(self.carry.is_none(), "what was carried has moved up");
        let behind = self.parcel.take();
        self.add(rest);
        match behind {
            Some(behind) if self.is_full() => self.carry = Some(behind),
            Some(behind) => self.add(behind),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rowlock_proto::SessionId;
    use rowlock_state::command::{Attachment, Command, Origin};

    fn parcel(term: u64, count: usize) -> Parcel {
        let proposal = Proposal {
            origin: Origin::default(),
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command: Command::Noop,
        };
        Parcel { term, proposals: vec![proposal; count] }
    }

    fn taken(next: &mut Next) -> Option<(u64, usize)> {
        next.take().map(|(term, proposals)| (term, proposals.len()))
    }

    #[test]
    fn what_is_waiting_is_folded_up_to_the_limit_and_the_rest_begins_the_next_entry() {
        let mut next = Next::default();
        for count in [100, 200, 200] {
            assert!(!next.is_full());
            next.add(parcel(1, count));
        }
        next.add(parcel(1, 200));
        assert!(next.is_full());
        assert_eq!(taken(&mut next), Some((1, 500)));
        assert_eq!(taken(&mut next), Some((1, 200)));
        assert!(next.is_empty());
        assert_eq!(taken(&mut next), None);
    }

    #[test]
    fn another_term_is_never_folded_in() {
        let mut next = Next::default();
        next.add(parcel(1, 1));
        next.add(parcel(2, 1));
        assert!(next.is_full());
        assert_eq!(taken(&mut next), Some((1, 1)));
        assert_eq!(taken(&mut next), Some((2, 1)));
    }

    #[test]
    fn what_was_too_much_for_an_entry_is_the_first_of_the_next() {
        for (rest, expected) in
            [(12, &[(1, 512)][..]), (100, &[(1, 100), (1, 500)]), (512, &[(1, 512), (1, 500)])]
        {
            let mut next = Next::default();
            next.add(parcel(1, 512));
            next.carry = Some(parcel(1, 500));
            assert_eq!(taken(&mut next), Some((1, 512)));
            next.put_back(parcel(1, rest));
            let all: Vec<_> = std::iter::from_fn(|| taken(&mut next)).collect();
            assert_eq!(all, expected);
        }
        let mut next = Next::default();
        next.add(parcel(1, 10));
        next.add(parcel(2, 10));
        assert_eq!(taken(&mut next), Some((1, 10)));
        next.put_back(parcel(1, 5));
        assert_eq!((taken(&mut next), taken(&mut next)), (Some((1, 5)), Some((2, 10))));
    }

    #[test]
    fn an_entry_is_full_with_as_many_commands_as_it_may_have() {
        let mut next = Next::default();
        next.add(parcel(1, BATCH_MAX_COMMANDS));
        assert!(next.is_full());
        assert_eq!(taken(&mut next), Some((1, BATCH_MAX_COMMANDS)));
    }
}
