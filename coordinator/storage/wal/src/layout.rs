//! The mark of the build that wrote a data folder: the fingerprint of what this crate writes, with those of
//! the replicated formats whose bytes it keeps. Pure.

use rowlock_state::{Layout, upgrade};
use rowlock_types::versions::{Versions, this_build};

/// Everything that this crate writes: `identity`, `acquaintances`, segments with their records, and the
/// headers of snapshots. The samples are the golden bytes of the modules' tests.
pub const FOLDER: Layout = Layout(0xad58_6e71);

/// A mark of the build that wrote a folder or a file in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub folder: Layout,
    /// One for each version of the cluster's of which there may be entries or a state.
    pub replicated: Vec<(u16, Layout)>,
    /// The release and commit of that build.
    pub build: String,
}

/// The folder or file is another build's, which is named if it is known. Its bytes may be whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherBuild(pub Option<String>);

impl Stamp {
    /// Makes the mark of this build, for a folder whose cluster is at this version.
    pub fn ours(version: u16) -> Stamp {
        let known = |version| Some((version, Layout::of_version(version)?));
        let replicated = (upgrade::FIRST..=version).filter_map(known).collect();
        let stamp = Stamp { folder: FOLDER, replicated, build: this_build() };
        assert!(!stamp.replicated.is_empty(), "a release knows the first version");
        assert_eq!(stamp.check(), Ok(()), "a build reads its own files");
        stamp
    }

    /// Compares what this build knows. A version that it does not know is refused elsewhere, by its number.
    pub fn check(&self) -> Result<(), OtherBuild> {
        let differs = |(version, layout): &(u16, Layout)| {
            Layout::of_version(*version).is_some_and(|ours| ours != *layout)
        };
        if self.folder != FOLDER || self.replicated.iter().any(differs) {
            return Err(OtherBuild(Some(self.build.clone())));
        }
        Ok(())
    }
}

/// The fingerprint that a segment's header carries for its entries: that of the oldest version that the build
/// takes part in. A release that takes part in the next one knows it, too.
pub fn of_entries() -> Layout {
    Layout::of_version(Versions::of_this_release().least).expect("Invariant: a release knows its versions")
}

/// Compares with the entries of each version that this build reads.
pub fn reads_entries(of: Layout) -> bool {
    (upgrade::FIRST..=Versions::of_this_release().most).any(|version| Layout::of_version(version) == Some(of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{frame, record, segment};
    use crate::{folder, identity, snapshot};

    #[test]
    fn the_fingerprint_is_that_of_the_golden_bytes() {
        let records = record::tests::golden().map(|(_, bytes)| bytes);
        let others = [
            segment::tests::GOLDEN,
            frame::tests::GOLDEN,
            folder::tests::GOLDEN,
            identity::tests::GOLDEN,
            snapshot::format::tests::GOLDEN,
        ];
        let samples = Layout::of_samples(records.into_iter().chain(others));
        assert_eq!(FOLDER, samples, "FOLDER is to be {samples}");
    }

    #[test]
    fn another_build_is_one_that_writes_otherwise_what_this_one_knows() {
        let ours = Stamp::ours(upgrade::FIRST);
        assert_eq!(ours.check(), Ok(()));
        let later = Stamp { replicated: vec![ours.replicated[0], (900, Layout(7))], ..ours.clone() };
        assert_eq!(later.check(), Ok(()), "its number is refused elsewhere");
        let build = "0.2.0 (39abd609)".to_owned();
        for other in [
            Stamp { folder: Layout(FOLDER.0 ^ 1), build: build.clone(), ..ours.clone() },
            Stamp { replicated: vec![(upgrade::FIRST, Layout(7))], build: build.clone(), ..ours.clone() },
        ] {
            assert_eq!(other.check(), Err(OtherBuild(Some(build.clone()))));
        }
        assert!(reads_entries(of_entries()) && !reads_entries(Layout(7)));
    }
}
