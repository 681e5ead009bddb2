//! The version in which the cluster writes and the cluster's identity, as parts of the state, and
//! fingerprints of formats. `upgrade` changes the version; `restore` gives a state to another cluster.

use std::fmt;
use std::str::FromStr;

use rowlock_proto::ClusterId;
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

/// The fingerprint of one format: a number beside each version that differs whenever the written bytes
/// differ.
///
/// A version defines the bytes that a release reads. Between two releases, builds of one version may write
/// other bytes. By the fingerprint a node refuses files and nodes of another build as such: the node takes no
/// file for damaged, and replays no log to another state.
///
/// Invariant: a fingerprint is the checksum of golden samples with zeros in the positions of fingerprints. A
/// test compares both for each fingerprint: samples do not change alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layout(pub u32);

/// Log entries, snapshots, and the effect of each command on the state, in the first version. The samples are
/// the golden files of `testdata`.
const REPLICATED: Layout = Layout(0x10e0_3b1d);

impl Layout {
    /// Returns the checksum of these samples.
    pub fn of_samples<T: AsRef<[u8]>>(samples: impl IntoIterator<Item = T>) -> Layout {
        let mut hasher = crc32fast::Hasher::new();
        for sample in samples {
            debug_assert!(!sample.as_ref().is_empty(), "a sample has bytes");
            hasher.update(&(sample.as_ref().len() as u64).to_le_bytes());
            hasher.update(sample.as_ref());
        }
        Layout(hasher.finalize())
    }

    /// Returns the fingerprint of the replicated formats in a version of the cluster; `None` for an unknown
    /// version. Fingerprints of earlier versions stay while nodes read the versions.
    pub fn of_version(version: u16) -> Option<Layout> {
        match version {
            FIRST => Some(REPLICATED),
            // No release writes this version: no samples exist.
            REHEARSED => Some(Layout(!REPLICATED.0)),
            _ => None,
        }
    }

    /// Returns the combined fingerprint of two formats used together.
    #[must_use]
    pub fn and(self, other: Layout) -> Layout {
        Layout::of_samples([self.0.to_le_bytes(), other.0.to_le_bytes()])
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for Layout {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Layout, Self::Err> {
        u32::from_str_radix(text, 16).map(Layout)
    }
}

/// The identity of a new cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCluster {
    pub id: ClusterId,
    /// Milliseconds without new sessions; 0: clients may open sessions at once.
    pub grace_ms: u32,
}
