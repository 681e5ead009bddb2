//! Versions and identity: the version in which the cluster writes and the cluster's identity, as parts of
//! the state; the versions of Rowlock's formats that a node knows (messages between nodes, log entries,
//! snapshots, and the effect of an entry on the state); and fingerprints of formats.
//!
//! One number covers all formats, since a release changes them together. Every release also knows the
//! previous version, so that a cluster can replace its nodes one by one. The cluster decides which version
//! to write ([`ClusterVersion`]), not the node. `upgrade` changes the version; `restore` gives a state to
//! another cluster.
//!
//! Builds of one release may still differ in a format: [`Build`] distinguishes them.

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
const REPLICATED: Layout = Layout(0xd891_b9fc);

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

/// The oldest version of this release: the version of release 0.2.0, the first one.
const LEAST: u16 = FIRST;
/// The newest version of this release. A release that changes a format raises the number.
const MOST: u16 = FIRST;

/// The release of this build.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The commit of a packaged build.
pub const COMMIT: &str = match option_env!("ROWLOCK_COMMIT") {
    Some(commit) => commit,
    None => "unreleased",
};

/// Fingerprint of the messages between nodes in the first version. The samples are
/// `coordinator/raft/consensus/src/peer/testdata/wire.txt`.
pub const MESSAGES: Layout = Layout(0xfad3_ef65);

/// Returns release and commit of this build, for people.
pub fn this_build() -> String {
    format!("{RELEASE} ({COMMIT})")
}

/// Fingerprints of a build: builds that write one version differently have different fingerprints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub commit: String,
    /// Fingerprint of everything that nodes must have in common, for each version known to the build.
    pub layouts: Vec<(u16, Layout)>,
}

impl Build {
    /// Computes the fingerprints of this build for the versions from `least` to `most`.
    fn of_versions(least: u16, most: u16) -> Box<Build> {
        let known = |version| Some((version, Layout::of_version(version)?.and(MESSAGES)));
        Box::new(Build { commit: COMMIT.to_owned(), layouts: (least..=most).filter_map(known).collect() })
    }

    /// Returns true if both builds write this version identically. A build without the version does not
    /// agree.
    pub fn agrees_with(&self, other: &Build, version: u16) -> bool {
        let of = |build: &Build| build.layouts.iter().find(|(known, _)| *known == version).copied();
        of(self).is_some_and(|ours| of(other) == Some(ours))
    }
}

/// Versions known to a node, and the release of the node.
///
/// Invariant: the first frame of every connection between nodes contains this type, so its fields never
/// change. The build follows that frame and appears nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest version supported by the node.
    pub least: u16,
    /// The newest version supported by the node.
    pub most: u16,
    /// The release, as printed by `rowlock --version`.
    pub release: String,
    #[serde(skip)]
    pub build: Box<Build>,
}

impl Versions {
    pub fn of_this_release() -> Versions {
        let build = Build::of_versions(LEAST, MOST);
        Versions { least: LEAST, most: MOST, release: RELEASE.to_owned(), build }
    }

    /// Returns the versions of a fictitious release: this one with one more version. For tests of upgrades in
    /// this repository; no configuration file and no flag leads here.
    #[doc(hidden)]
    pub fn of_a_rehearsal() -> Versions {
        let build = Build::of_versions(LEAST, REHEARSED);
        Versions { least: LEAST, most: REHEARSED, release: format!("{RELEASE}-rehearsal"), build }
    }

    /// Returns true if the node can read and write this version.
    pub fn include(&self, version: u16) -> bool {
        (self.least..=self.most).contains(&version)
    }

    /// Checks that the node can continue in a cluster of this version.
    ///
    /// # Errors
    /// [`OtherRelease`]: the node cannot; the text says which release to run.
    pub fn check(&self, cluster: &ClusterVersion) -> Result<(), OtherRelease> {
        if self.include(cluster.number) {
            return Ok(());
        }
        Err(OtherRelease { cluster: cluster.clone(), ours: self.clone() })
    }

    /// Drops the versions before `version`, which the cluster no longer uses.
    #[must_use]
    pub fn since(mut self, version: u16) -> Versions {
        self.least = self.least.max(version);
        assert!(self.least >= version, "a dropped version came back");
        self
    }

    /// Returns the newest version known to both nodes.
    pub fn common(&self, other: &Versions) -> Option<u16> {
        let newest = self.most.min(other.most);
        let common = (self.include(newest) && other.include(newest)).then_some(newest);
        assert!(
            common.is_none_or(|common| common <= self.most),
            "the common version is unknown to this node"
        );
        common
    }
}

impl Default for Versions {
    fn default() -> Self {
        Versions::of_this_release()
    }
}

/// The cluster writes a version that this node does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct OtherRelease {
    pub cluster: ClusterVersion,
    pub ours: Versions,
}

impl fmt::Display for OtherRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OtherRelease { cluster: ClusterVersion { number, release }, ours } = self;
        let release = release.escape_debug();
        if *number > ours.most {
            write!(
                f,
                "the cluster uses version {number} of release {release}, which this node, {ours}, does not know. Nothing \
                 was changed. Run release {release} or a later one on this node. The only way back to an older \
                 release is a backup made with that release (docs/operations.md)."
            )
        } else {
            write!(
                f,
                "the cluster still uses version {number} of release {release}, which this node, {ours}, no longer \
                 supports. Nothing was changed. Upgrade by one release at a time: run a release in between on all \
                 nodes, and finalize that upgrade (rowlock upgrade finalize)."
            )
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Another node's release may contain any text.
        let release = self.release.escape_debug();
        if self.least == self.most {
            write!(f, "release {release} (version {})", self.most)
        } else {
            write!(f, "release {release} (versions {} to {})", self.least, self.most)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(least: u16, most: u16) -> Versions {
        Versions { least, most, release: "x".to_owned(), build: Box::default() }
    }

    #[test]
    fn two_nodes_use_their_newest_common_version() {
        for (one, other, common) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 1), (1, 2), Some(1)),
            ((1, 2), (2, 3), Some(2)),
            ((1, 1), (2, 3), None),
            ((2, 1), (1, 2), None),
        ] {
            let (one, other) = (versions(one.0, one.1), versions(other.0, other.1));
            assert_eq!((one.common(&other), other.common(&one)), (common, common), "{one} and {other}");
        }
    }

    #[test]
    fn dropped_versions_are_not_offered() {
        let node = versions(1, 2).since(2);
        assert_eq!((node.common(&versions(1, 1)), node.common(&versions(1, 3))), (None, Some(2)));
        assert_eq!(versions(2, 3).since(1), versions(2, 3));
    }

    #[test]
    fn the_refusal_of_a_version_names_both_releases_and_a_remedy() {
        let cluster = |number| ClusterVersion { number, release: "0.9.0".to_owned() };
        let node = Versions { release: "0.5.0".to_owned(), ..versions(3, 4) };
        assert_eq!((node.check(&cluster(3)), node.check(&cluster(4))), (Ok(()), Ok(())));
        for (number, advice) in [(5, "Run release 0.9.0 or a later one"), (2, "by one release at a time")] {
            let text = node.check(&cluster(number)).expect_err("is refused").to_string();
            assert!(text.contains("0.9.0") && text.contains("0.5.0") && text.contains(advice), "{text}");
        }
    }

    #[test]
    fn builds_agree_only_on_versions_with_equal_layouts() {
        let build = |layouts: &[(u16, u32)]| Build {
            layouts: layouts.iter().map(|(version, layout)| (*version, Layout(*layout))).collect(),
            ..Build::default()
        };
        let ours = build(&[(1, 7), (2, 8)]);
        assert!(ours.agrees_with(&build(&[(1, 7)]), 1) && ours.agrees_with(&build(&[(2, 8), (3, 9)]), 2));
        assert!(!ours.agrees_with(&build(&[(1, 6), (2, 8)]), 1), "another layout of the version");
        assert!(
            !ours.agrees_with(&build(&[]), 1) && !build(&[]).agrees_with(&build(&[]), 1),
            "the version is unknown to one build"
        );
        let (ours, next) = (Versions::of_this_release(), Versions::of_a_rehearsal());
        assert!(ours.build.agrees_with(&next.build, MOST), "a rehearsal writes this version identically");
    }

    #[test]
    fn a_release_knows_itself_and_the_one_before_it() {
        let ours = Versions::of_this_release();
        assert!(ours.include(MOST) && ours.most - ours.least <= 1);
        assert_eq!(ours.common(&Versions::of_a_rehearsal()), Some(MOST));
        assert_eq!(versions(1, 2).to_string(), "release x (versions 1 to 2)");
    }
}
