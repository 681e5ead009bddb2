//! Stamp of the build in a data folder: the fingerprint of this crate's formats, with the fingerprints of the
//! replicated formats in the folder. Pure.

use rowlock_state::version::{Versions, this_build};
use rowlock_state::{Layout, version};

/// Fingerprint of this crate's formats: `identity`, `acquaintances`, segments with their records, and the
/// headers of snapshots. The samples are the golden bytes of the modules' tests.
pub const FOLDER: Layout = Layout(0xad58_6e71);

/// Build stamp of a folder or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub folder: Layout,
    /// Fingerprints for each cluster version of the entries and states in the folder.
    pub replicated: Vec<(u16, Layout)>,
    /// Release and commit of the build.
    pub build: String,
}

/// Refusal of another build's folder or file, with the build's name if known. The bytes may be intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherBuild(pub Option<String>);

impl Stamp {
    /// Makes the stamp of this build, for a folder at this cluster version.
    pub fn ours(version: u16) -> Stamp {
        let known = |version| Some((version, Layout::of_version(version)?));
        let replicated = (version::FIRST..=version).filter_map(known).collect();
        let stamp = Stamp { folder: FOLDER, replicated, build: this_build() };
        assert!(!stamp.replicated.is_empty(), "a release knows the first version");
        assert_eq!(stamp.check(), Ok(()), "a build reads its own files");
        stamp
    }

    /// Compares the fingerprints known to this build. The check of versions refuses unknown versions
    /// elsewhere.
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

/// Returns the fingerprint of entries for a segment's header: the fingerprint of this build's least version.
/// The next release still knows this fingerprint.
pub fn of_entries() -> Layout {
    Layout::of_version(Versions::of_this_release().least).expect("Invariant: a release knows its versions")
}

/// Returns true if this build reads entries with the fingerprint.
pub fn reads_entries(of: Layout) -> bool {
    (version::FIRST..=Versions::of_this_release().most).any(|version| Layout::of_version(version) == Some(of))
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
    fn a_stamp_with_a_differing_known_fingerprint_is_refused() {
        let ours = Stamp::ours(version::FIRST);
        assert_eq!(ours.check(), Ok(()));
        let later = Stamp { replicated: vec![ours.replicated[0], (900, Layout(7))], ..ours.clone() };
        assert_eq!(later.check(), Ok(()), "its number is refused elsewhere");
        let build = "0.2.0 (39abd609)".to_owned();
        for other in [
            Stamp { folder: Layout(FOLDER.0 ^ 1), build: build.clone(), ..ours.clone() },
            Stamp { replicated: vec![(version::FIRST, Layout(7))], build: build.clone(), ..ours.clone() },
        ] {
            assert_eq!(other.check(), Err(OtherBuild(Some(build.clone()))));
        }
        assert!(reads_entries(of_entries()) && !reads_entries(Layout(7)));
    }
}
