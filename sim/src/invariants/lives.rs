//! Lives of a cluster: each restore, and each recovery of a last node, creates a new cluster with a new log.
//! Most promises are about a single cluster. Each life has new checkers, which start from the state of the
//! new cluster.
//!
//! A client's fact goes to the checkers of the life in which the client's session was opened: answers of the
//! old cluster may still arrive when the new one serves.

use std::collections::BTreeMap;

use rowlock_proto::SessionId;

use super::{Invariant, Violation, observe_all};
use crate::history::client::{CallId, ClientFact, Op, WatchId};
use crate::history::{Book, Fact};

/// Number of a life, from 0.
type Life = usize;
type Checkers = Vec<Box<dyn Invariant>>;

/// Checkers of all lives so far, with the book of each.
pub(super) struct Lives {
    make: Box<dyn Fn() -> Checkers + Send>,
    lives: Vec<(Checkers, Book)>,
    sessions: BTreeMap<SessionId, Life>,
    calls: BTreeMap<CallId, Life>,
    watches: BTreeMap<WatchId, Life>,
}

impl Lives {
    /// Starts the first life. `make` creates the checkers of one life.
    pub(super) fn of(make: impl Fn() -> Checkers + Send + 'static) -> Lives {
        let lives = vec![(make(), Book::default())];
        let (sessions, calls, watches) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Lives { make: Box::new(make), lives, sessions, calls, watches }
    }

    /// Returns the names of the promises under check.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.lives[0].0.iter().map(|checker| checker.name())
    }

    /// Returns the checkers of all lives.
    pub(super) fn checkers(&self) -> impl Iterator<Item = &Box<dyn Invariant>> {
        self.lives.iter().flat_map(|(checkers, _)| checkers)
    }

    /// Returns the book of the present life.
    pub(super) fn book(&self) -> &Book {
        &self.lives.last().expect("Invariant: there is a first life").1
    }

    /// Passes a fact to the checkers of the life that the fact belongs to.
    pub(super) fn observe(&mut self, fact: &Fact) -> Result<(), Violation> {
        match fact {
            Fact::NewLife(new) => {
                self.lives.push(((self.make)(), Book::default()));
                self.current(fact)?;
                return new.begins_with.iter().try_for_each(|fact| self.current(fact));
            }
            Fact::SessionOpened { session, .. } => {
                self.sessions.insert(*session, self.lives.len() - 1);
            }
            // Every session ends with its cluster.
            Fact::Client { what: ClientFact::HasEnded { session }, .. }
                if self.sessions.get(session).is_some_and(|life| life + 1 < self.lives.len()) =>
            {
                return Ok(());
            }
            Fact::Client { what, .. } => {
                return match self.life_of(what) {
                    Some(life) => {
                        let (checkers, book) = &mut self.lives[life];
                        observe_all(checkers, fact, book)
                    }
                    None => self
                        .lives
                        .iter_mut()
                        .try_for_each(|(checkers, book)| observe_all(checkers, fact, book)),
                };
            }
            _ => {}
        }
        self.current(fact)
    }

    fn current(&mut self, fact: &Fact) -> Result<(), Violation> {
        let (checkers, book) = self.lives.last_mut().expect("Invariant: there is a first life");
        observe_all(checkers, fact, book)?;
        book.record(fact);
        Ok(())
    }

    /// Returns the life of the session that the fact is about, `None` for a fact about no session.
    fn life_of(&mut self, what: &ClientFact) -> Option<Life> {
        match what {
            ClientFact::Invoked { call, session, op } => {
                let life = *self.sessions.get(session)?;
                self.calls.insert(*call, life);
                if let Op::Read { watch: Some(watch), .. } = &**op {
                    self.watches.insert(*watch, life);
                }
                Some(life)
            }
            ClientFact::Returned { call, .. } => self.calls.remove(call),
            ClientFact::Event { watch, .. } => self.watches.get(watch).copied(),
            ClientFact::Session { session, .. }
            | ClientFact::Plain { session }
            | ClientFact::Lease { session }
            | ClientFact::Connects { session, .. }
            | ClientFact::Link { session, .. }
            | ClientFact::Follows { session, .. }
            | ClientFact::HasEnded { session }
            | ClientFact::Alive { session, .. } => self.sessions.get(session).copied(),
            ClientFact::Events(_)
            | ClientFact::Access(_)
            | ClientFact::Asked { .. }
            | ClientFact::Holds { .. }
            | ClientFact::LetGo { .. }
            | ClientFact::Asks { .. }
            | ClientFact::Heard { .. }
            | ClientFact::GaveUp { .. }
            | ClientFact::Wrote { .. }
            | ClientFact::Waits { .. }
            | ClientFact::Served
            | ClientFact::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::text::history;

    /// Rejects the third fact about a session.
    struct Once(u32);

    impl Invariant for Once {
        fn name(&self) -> &'static str {
            "once"
        }

        fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
            let is_about = matches!(fact, Fact::SessionOpened { .. } | Fact::Client { .. });
            self.0 += u32::from(is_about);
            if self.0 < 3 { Ok(()) } else { Err(format!("{fact:?}")) }
        }
    }

    fn observe(text: &str) -> Result<(), Violation> {
        let mut lives = Lives::of(|| vec![Box::new(Once(0))]);
        history(text).iter().try_for_each(|fact| lives.observe(fact))
    }

    #[test]
    fn late_facts_belong_to_the_life_of_their_session() {
        let facts = "opened 1; life 9; opened 2; c1 alive 1; c2 alive 1";
        assert_eq!(observe(facts), Ok(()), "a fact is the third of its life");
        assert!(observe(&format!("{facts}; c1 alive 1")).is_err());
        assert!(observe(&format!("{facts}; c2 alive 1")).is_err());
    }

    #[test]
    fn a_session_ends_with_its_cluster() {
        assert_eq!(observe("opened 1; c1 alive 1; life 9; c1 ended-session 1"), Ok(()));
        assert!(observe("opened 1; c1 alive 1; c1 ended-session 1").is_err());
    }

    #[test]
    fn a_life_begins_with_the_state_of_the_new_cluster() {
        assert!(observe("life 9 1 2 3").is_err());
    }
}
