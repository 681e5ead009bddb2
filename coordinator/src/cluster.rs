//! The cluster around a node: how nodes find each other and come in, change their members and versions,
//! compare their states, and do what operators want. The feature `cluster`.
//!
//! Invariant: nothing here knows `access`; the heart ([`crate::node`]) knows nothing of this.

pub mod autopilot;
pub mod backups;
pub mod bootstrap;
pub mod comparison;
pub(crate) mod disk_watch;
pub mod operations;
pub mod reconfig;
pub mod upgrade;
