//! Which versions of Rowlock's own forms a node knows: of the messages between nodes, of log entries, of
//! snapshots, and of what an entry does to the state.
//!
//! One number counts for all of them, since they change together, with a release. Every release knows the
//! version before its own as well, so that the nodes of a cluster are replaced one by one. Which of the
//! versions is written is the cluster's decision (`rowlock_state::upgrade`), not the node's.
//!
//! Builds of one release may differ in a form all the same: [`Build`] tells them apart.

use std::fmt;

use rowlock_state::{ClusterVersion, Layout, upgrade};
use serde::{Deserialize, Serialize};

/// The oldest version that this release knows: that of release 0.2.0, the first one.
const LEAST: u16 = upgrade::FIRST;
/// The newest version that this release knows. Raised by a release that changes a form.
const MOST: u16 = upgrade::FIRST;
/// The version that exists for rehearsals of upgrades: see [`Versions::of_a_rehearsal`].
const REHEARSED: u16 = upgrade::REHEARSED;

/// The release of this build.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The commit that a package was built from.
pub const COMMIT: &str = match option_env!("ROWLOCK_COMMIT") {
    Some(commit) => commit,
    None => "unreleased",
};

/// The messages between nodes in the first version. The samples are
/// `coordinator/raft/consensus/src/peer/testdata/wire.txt`.
pub const MESSAGES: Layout = Layout(0xfe9a_1e3a);

/// Release and commit of this build, for people.
pub fn this_build() -> String {
    format!("{RELEASE} ({COMMIT})")
}

/// The fingerprints of a build, which differ between builds that write one version in two ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub commit: String,
    /// Fingerprints of everything that nodes must have in common, for each version that the build knows.
    pub layouts: Vec<(u16, Layout)>,
}

impl Build {
    /// Makes the fingerprints of this build, for the versions from `least` to `most`.
    fn of_versions(least: u16, most: u16) -> Box<Build> {
        let known = |version| Some((version, Layout::of_version(version)?.and(MESSAGES)));
        Box::new(Build { commit: COMMIT.to_owned(), layouts: (least..=most).filter_map(known).collect() })
    }

    /// Compares how both write this version. A build that says nothing of a version does not agree.
    pub fn agrees_with(&self, other: &Build, version: u16) -> bool {
        let of = |build: &Build| build.layouts.iter().find(|(known, _)| *known == version).copied();
        of(self).is_some_and(|ours| of(other) == Some(ours))
    }
}

/// The versions that a node knows, and the release that it runs.
///
/// Invariant: it stands in the first frame of every connection between nodes, so its fields stay as they are
/// for ever. The build comes behind that frame, and is nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest one that it takes part in.
    pub least: u16,
    /// The newest one that it knows.
    pub most: u16,
    /// The release, as `rowlock --version` says it.
    pub release: String,
    #[serde(skip)]
    pub build: Box<Build>,
}

impl Versions {
    pub fn of_this_release() -> Versions {
        let build = Build::of_versions(LEAST, MOST);
        Versions { least: LEAST, most: MOST, release: RELEASE.to_owned(), build }
    }

    /// Those of a release that does not exist: this one with one more version. For tests of upgrades in this
    /// repository; no configuration file and no flag leads here.
    #[doc(hidden)]
    pub fn of_a_rehearsal() -> Versions {
        let build = Build::of_versions(LEAST, REHEARSED);
        Versions { least: LEAST, most: REHEARSED, release: format!("{RELEASE}-rehearsal"), build }
    }

    /// Whether the node can read and write this version.
    pub fn include(&self, version: u16) -> bool {
        (self.least..=self.most).contains(&version)
    }

    /// Whether the node can go on in a cluster of this version.
    ///
    /// # Errors
    /// [`OtherRelease`]: it cannot; says what to run.
    pub fn check(&self, cluster: &ClusterVersion) -> Result<(), OtherRelease> {
        if self.include(cluster.number) {
            return Ok(());
        }
        Err(OtherRelease { cluster: cluster.clone(), ours: self.clone() })
    }

    /// Drops the versions before `version`: the cluster has left them behind.
    #[must_use]
    pub fn since(mut self, version: u16) -> Versions {
        self.least = self.least.max(version);
        assert!(self.least >= version, "a version that is left behind is not taken up again");
        self
    }

    /// The newest version that both know.
    pub fn common(&self, other: &Versions) -> Option<u16> {
        let newest = self.most.min(other.most);
        let common = (self.include(newest) && other.include(newest)).then_some(newest);
        assert!(
            common.is_none_or(|common| common <= self.most),
            "nobody is spoken to in what it does not know"
        );
        common
    }
}

impl Default for Versions {
    fn default() -> Self {
        Versions::of_this_release()
    }
}

/// The cluster writes in a version that this node does not know.
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
                "the cluster has gone over to version {number}, that of release {release}, and this is {ours}, which does \
                 not know it. Nothing was changed. Run release {release} or a later one on this node. There is no way \
                 back to an older one, but a backup that was made with it (docs/backup.md)."
            )
        } else {
            write!(
                f,
                "the cluster is still at version {number}, that of release {release}, and this is {ours}, which has left \
                 it behind. Nothing was changed. Upgrade by one release at a time: run one in between on all nodes, and \
                 finalize it (rowlock upgrade finalize)."
            )
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What another node says of itself may be anything.
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
    fn two_nodes_use_the_newest_version_that_both_know() {
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
    fn what_the_cluster_has_left_behind_is_not_offered() {
        let node = versions(1, 2).since(2);
        assert_eq!((node.common(&versions(1, 1)), node.common(&versions(1, 3))), (None, Some(2)));
        assert_eq!(versions(2, 3).since(1), versions(2, 3));
    }

    #[test]
    fn a_cluster_of_another_version_is_refused_with_both_releases_and_what_to_do() {
        let cluster = |number| ClusterVersion { number, release: "0.9.0".to_owned() };
        let node = Versions { release: "0.5.0".to_owned(), ..versions(3, 4) };
        assert_eq!((node.check(&cluster(3)), node.check(&cluster(4))), (Ok(()), Ok(())));
        for (number, advice) in [(5, "Run release 0.9.0 or a later one"), (2, "by one release at a time")] {
            let told = node.check(&cluster(number)).expect_err("is refused").to_string();
            assert!(told.contains("0.9.0") && told.contains("0.5.0") && told.contains(advice), "{told}");
        }
    }

    #[test]
    fn builds_agree_on_a_version_that_both_write_alike_and_on_no_other() {
        let build = |layouts: &[(u16, u32)]| Build {
            layouts: layouts.iter().map(|(version, layout)| (*version, Layout(*layout))).collect(),
            ..Build::default()
        };
        let ours = build(&[(1, 7), (2, 8)]);
        assert!(ours.agrees_with(&build(&[(1, 7)]), 1) && ours.agrees_with(&build(&[(2, 8), (3, 9)]), 2));
        assert!(!ours.agrees_with(&build(&[(1, 6), (2, 8)]), 1), "it writes the version otherwise");
        assert!(
            !ours.agrees_with(&build(&[]), 1) && !build(&[]).agrees_with(&build(&[]), 1),
            "it is unknown"
        );
        let (ours, next) = (Versions::of_this_release(), Versions::of_a_rehearsal());
        assert!(ours.build.agrees_with(&next.build, MOST), "an upgrade is no other build");
    }

    #[test]
    fn a_release_knows_itself_and_the_one_before_it() {
        let ours = Versions::of_this_release();
        assert!(ours.include(MOST) && ours.most - ours.least <= 1);
        assert_eq!(ours.common(&Versions::of_a_rehearsal()), Some(MOST));
        assert_eq!(versions(1, 2).to_string(), "release x (versions 1 to 2)");
    }
}
