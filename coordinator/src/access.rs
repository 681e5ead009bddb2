//! Access to a node beside ZooKeeper's protocol: HTTP with the console, leases and locks for HTTP clients,
//! reports, the lock history, and tokens. The feature `access`.
//!
//! Invariant: nothing here knows `cluster`; the heart ([`crate::node`]) knows nothing of this.

pub mod api;
pub mod http;
pub(crate) mod lock_feed;
pub mod report;
pub mod tokens;

#[cfg(test)]
pub(crate) mod tests;
