//! The cluster's version: when it is due to rise, and that it does not rise after an operator's hold.

use rowlock_state::version::FIRST;
use rowlock_world::time::Nanos;

use super::owed::Owed;
use crate::history::HEALTH;

#[derive(Default)]
pub(super) struct Upgrade {
    is_raised: bool,
    /// The log says that the version is held.
    is_held: bool,
    /// An operator knows of the hold.
    is_known: bool,
    /// Time from which an operator asks for the new version.
    let_go: Option<Nanos>,
}

impl Upgrade {
    /// Records the version in the log. Returns whether the version rises.
    pub(super) fn change(&mut self, number: u16, is_held: bool) -> Result<bool, String> {
        let rises = !self.is_raised && number > FIRST;
        if rises && self.is_known && self.let_go.is_none() {
            return Err(format!("the version rises to {number} after an operator's hold"));
        }
        (self.is_raised, self.is_held) = (self.is_raised || rises, is_held);
        Ok(rises)
    }

    /// Records an operator who knows of the hold, or asks for the new version.
    pub(super) fn operate(&mut self, holds: bool, now: Nanos) -> Result<(), String> {
        if holds && (!self.is_held || self.is_raised) {
            return Err("an operator learns of a hold, and the log says nothing of it".to_owned());
        }
        (self.is_known, self.let_go) = (self.is_known || holds, (!holds).then_some(now));
        Ok(())
    }

    /// Returns since when the version is due to rise.
    pub(super) fn since(&self, owed: &Owed) -> Option<Nanos> {
        let ground = owed.upgraded_since().filter(|_| !self.is_raised)?;
        match self.let_go {
            Some(at) => Some(ground.max(at)),
            None => (!self.is_held).then_some(ground + HEALTH),
        }
    }
}
