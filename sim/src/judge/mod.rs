//! Judges a real cluster after the fact: replays the logs of its nodes through the reference of the simulator
//! and shows the facts to those checkers that need nothing but committed entries and the nodes' logs.
//!
//! Data folders become a [`folder::NodeLog`] each, these one log of committed entries ([`evidence`]), the log
//! facts ([`replay`], `logs`) for [`promises`]; the nodes' lock histories are compared with the log
//! ([`histories`]); [`drawing`] shows the time around a moment.
//!
//! Nothing here writes into a data folder or takes a lock.

pub mod drawing;
pub mod evidence;
pub mod folder;
pub mod histories;
mod logs;
pub mod promises;
pub mod replay;

pub use evidence::Evidence;
pub use folder::Unreadable;
pub use promises::Promise;
pub use replay::Replayed;

/// Result of a judgment.
#[derive(Debug)]
pub struct Judgment {
    pub promises: Vec<Promise>,
    pub replayed: Replayed,
    pub histories: Vec<histories::Compared>,
}

impl Judgment {
    /// Returns the first broken promise.
    pub fn broken(&self) -> Option<&Promise> {
        self.promises.iter().find(|promise| promise.broken().is_some())
    }

    /// Returns whether any command was judged.
    pub fn is_empty(&self) -> bool {
        self.replayed.commands == 0
    }
}

/// Replays the evidence and checks every promise that it can show.
///
/// # Errors
/// A committed entry, a snapshot or a history cannot be read.
pub fn run(evidence: &Evidence) -> Result<Judgment, Unreadable> {
    let mut promises = promises::Promises::of_a_log();
    let replayed = replay::run(evidence, &mut promises)?;
    logs::observe(evidence, &mut promises);
    let histories = histories::compare(evidence, &replayed, &mut promises)?;
    Ok(Judgment { promises: promises.into_list(), replayed, histories })
}
