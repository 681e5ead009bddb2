//! The version in which the cluster writes, as a part of the state. `upgrade` changes it.

use serde::{Deserialize, Serialize};

/// Version of the first release, 0.2.0.
pub const FIRST: u16 = 1;
/// The version after this release's newest one. No release writes this version: nodes change to it in
/// rehearsals of an upgrade, in tests and in the simulator. The version contains one change of each kind: log
/// entries begin with its number, a command has another effect (the state counts each `Noop`), and snapshots
/// have one more record.
#[doc(hidden)]
pub const REHEARSED: u16 = FIRST + 1;
/// Newest version that this release reads and applies.
pub(crate) const NEWEST: u16 = REHEARSED;

/// A version, with a release that knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterVersion {
    pub number: u16,
    /// Oldest release that reads the version, for operators.
    pub release: String,
}

impl Default for ClusterVersion {
    fn default() -> Self {
        ClusterVersion { number: FIRST, release: "0.2.0".to_owned() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Upgrade {
    pub(crate) version: ClusterVersion,
    /// The leader raises no version without an operator.
    pub(crate) held: bool,
    /// Number of `Noop`s since [`REHEARSED`].
    pub(crate) rehearsed: u64,
    /// Replaces the version in simulations of a node that breaks the invariant.
    pub(crate) mistaken: Option<u16>,
}
