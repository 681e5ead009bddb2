//! Clients of a run: the production client on hosts of its own, with reports of its calls and replies.
//!
//! `theme` draws the clients' work from the seed. `life` opens sessions and sends operations (`operations`).
//! `caller` and `section` wrap the client, and report every call, watch and held lock to the checkers.
//! `plain` has clients with ZooKeeper's requests only, `rest` has HTTP clients.
//!
//! Invariant: no step waits forever, except for locks and for replies that end with the session.

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

/// Runs a quiet client beside floods, until `closing` is true.
pub async fn run_bystander(journal: Journal, membership: Membership, closing: watch::Receiver<bool>) {
    plain::bystander::live(journal, membership, closing).await;
}

/// Runs one life of a client's process. Ends some time after `closing` is true, with all locks released and
/// the session closed.
pub async fn live(profile: Profile, journal: Journal, closing: watch::Receiver<bool>) {
    life::live(profile, journal, closing).await;
}
