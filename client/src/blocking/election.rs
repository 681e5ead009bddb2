//! The election, for callers that block.

use std::time::Duration;

use rowlock_env::time;

use super::caller::Caller;
use super::held::Held;
use crate::error::{Error, ReleaseError};
use crate::recipes::election::{Candidate, Leader, TransferError};

/// One of many leads, and all may know who: [`crate::Election`].
#[derive(Clone, Debug)]
pub struct Election {
    caller: Caller,
    election: crate::Election,
}

/// We lead. Dropping it resigns in the background.
pub type Leadership = Held<crate::Leadership>;

/// Tells who leads, whenever that changes: [`crate::Observer`]. As an iterator it ends behind the first
/// error.
#[derive(Debug)]
pub struct Observer {
    caller: Caller,
    observer: crate::Observer,
    ended: bool,
}

impl Election {
    pub(super) fn new(caller: &Caller, election: crate::Election) -> Self {
        Election { caller: caller.clone(), election }
    }

    /// Waits for the lead.
    ///
    /// # Errors
    /// As [`crate::Election::campaign`].
    pub fn campaign(&self, value: impl Into<String>) -> Result<Leadership, Error> {
        self.caller.wait(self.election.campaign(value)).map(|held| Held::new(&self.caller, held))
    }

    /// Waits for the lead for at most `patience` altogether.
    ///
    /// # Errors
    /// As [`crate::Election::campaign_timeout`].
    pub fn campaign_timeout(
        &self,
        value: impl Into<String>,
        patience: Duration,
    ) -> Result<Leadership, Error> {
        let held = self.caller.wait(self.election.campaign_timeout(value, patience))?;
        Ok(Held::new(&self.caller, held))
    }

    /// See [`crate::Election::leader`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        self.caller.ask(self.election.leader())
    }

    /// See [`crate::Election::candidates`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn candidates(&self) -> Result<Vec<Candidate>, Error> {
        self.caller.ask(self.election.candidates())
    }

    /// Follows who leads.
    pub fn observe(&self) -> Observer {
        Observer { caller: self.caller.clone(), observer: self.election.observe(), ended: false }
    }
}

impl Leadership {
    /// See [`crate::Leadership::set_value`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn set_value(&self, value: impl Into<String>) -> Result<(), Error> {
        self.caller.ask(self.held.set_value(value))
    }

    /// Gives the lead to a candidate who waits for it: see [`crate::Leadership::transfer_to`].
    ///
    /// # Errors
    /// As there.
    pub fn transfer_to(self, candidate: &Candidate) -> Result<(), TransferError<Leadership>> {
        let Held { held, caller } = self;
        let back = |held| Held::new(&caller, held);
        caller.wait(held.transfer_to(candidate)).map_err(|error| error.map(back))
    }

    /// Ends the lead, and waits until that is acknowledged.
    ///
    /// # Errors
    /// As [`Held::release`].
    pub fn resign(self) -> Result<(), ReleaseError> {
        self.release()
    }
}

impl Observer {
    /// Waits for news: at the first call at once.
    ///
    /// # Errors
    /// As [`crate::Observer::next`].
    pub fn wait(&mut self) -> Result<Option<Leader>, Error> {
        self.caller.wait(self.observer.next())
    }

    /// [`Observer::wait`] for at most `patience`; the outer `None`: no news.
    ///
    /// # Errors
    /// As [`crate::Observer::next`].
    pub fn wait_timeout(&mut self, patience: Duration) -> Result<Option<Option<Leader>>, Error> {
        let next = self.observer.next();
        self.caller.wait(async {
            match time::timeout(patience, next).await {
                Ok(news) => news.map(Some),
                Err(time::Elapsed) => Ok(None),
            }
        })
    }
}

impl Iterator for Observer {
    type Item = Result<Option<Leader>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let news = self.wait();
        self.ended = news.is_err();
        Some(news)
    }
}
