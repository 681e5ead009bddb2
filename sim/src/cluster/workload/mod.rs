//! What clients do in a run: the production client, on its own hosts, reporting its calls and their answers.
//!
//! `theme` draws from the seed what the clients of a run do. `life` opens sessions and sends operations
//! (`operations`) over them. `caller` and `section` stand between these and the client, and report every
//! call, watch and held lock to the checkers. `plain` has clients that speak only ZooKeeper's requests,
//! `rest` those by HTTP.
//!
//! Invariant: nothing here waits for ever, except for locks and for what ends with the session.

mod caller;
mod chance;
mod life;
mod operations;
mod plain;
mod rest;
mod section;
mod store;
#[cfg(test)]
mod tests;
mod theme;
mod watches;

use rowlock_env::sync::watch;

use super::membership::Membership;
use super::record::Journal;

pub use theme::{Profile, Theme, Work};

/// A quiet client beside floods, until `closing` says true.
pub async fn stand_by(journal: Journal, membership: Membership, closing: watch::Receiver<bool>) {
    plain::bystander::live(journal, membership, closing).await;
}

/// One life of a client's process. Ends some time after `closing` says true, with everything given back and
/// the session closed.
pub async fn live(profile: Profile, journal: Journal, closing: watch::Receiver<bool>) {
    life::live(profile, journal, closing).await;
}
