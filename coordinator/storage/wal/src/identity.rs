//! Owner of a data folder: a small text file, written into a new folder and checked at every start.
//!
//! The file also records the log's state: a folder with a vanished log must not pass for a new folder,
//! because the node would have forgotten its vote. The incarnation distinguishes the folder from an emptied
//! folder of the same node, and the state is the node's progress in joining its cluster.
//!
//! Stamp of the build in a data folder: the fingerprint of this crate's formats, with the fingerprints of the
//! replicated formats in the folder. Pure.

use std::fmt;

use rowlock_env::disk::Dir;
use rowlock_env::{decides, rng};
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::version::{self, Versions, this_build};
use rowlock_state::{ClusterVersion, Layout};

use super::error::StorageError;

/// Folder of the log's segments in the data folder.
pub const WAL_DIR: &str = "wal";
/// Folder of the newest snapshot in the data folder.
pub const SNAPSHOT_DIR: &str = "snapshots";
const FILE: &str = "identity";
/// Version of the folder's layout, since release 0.2.0. Segments and snapshots have their own versions.
pub const LAYOUT_VERSION: u32 = 2;
/// Layout version before the release, without the name of the build.
const UNSTAMPED_VERSION: u32 = 1;
/// First words of the file, before the version.
const BEGIN: &str = "Rowlock data folder, layout";
/// First bytes of the file in the earliest builds.
const UNRELEASED: &[u8] = b"rowlock data folder ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: String,
    pub node: NodeId,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} of cluster \"{}\"", self.node, self.cluster)
    }
}

impl Identity {
    /// Returns a stable hash of the cluster's name (FNV-1a), for headers of fixed size.
    pub fn cluster_hash(&self) -> u64 {
        self.cluster
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    /// Never written: the folder may be without segments.
    New,
    /// At least one segment must exist.
    Begun,
}

pub(super) fn new_incarnation() -> Incarnation {
    Incarnation(u128::from(rng::u64()) << 64 | u128::from(rng::u64()))
}

/// State of the folder's node in its cluster. The order is the order of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FolderState {
    /// Possible loss of data: the node must neither vote nor acknowledge.
    Unknown,
    /// The peers have confirmed that this is the node's first folder.
    Admitted,
    /// The node has applied a membership with itself among the members.
    Member,
}

impl FolderState {
    fn word(self) -> &'static str {
        match self {
            FolderState::Unknown => "unknown",
            FolderState::Admitted => "admitted",
            FolderState::Member => "member",
        }
    }

    fn named(word: &str) -> Option<FolderState> {
        [FolderState::Unknown, FolderState::Admitted, FolderState::Member]
            .into_iter()
            .find(|one| one.word() == word)
    }
}

/// Content of the file besides the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub log: LogState,
    pub incarnation: Incarnation,
    pub state: FolderState,
    /// `None` before the first contact with the cluster.
    pub cluster: Option<ClusterId>,
    /// Version of the cluster; `None` means the first version.
    pub version: Option<ClusterVersion>,
}

/// Checks the owner of the folder, or writes `identity` into a new folder.
pub fn claim(dir: &Dir, identity: &Identity) -> Result<Claim, StorageError> {
    let path = dir.path().to_owned();
    if !dir.exists(FILE) {
        let names = dir.list().map_err(StorageError::io("listing", &path))?;
        // The lock file and an interrupted first `write_atomic` are no content.
        if names.iter().any(|name| name == WAL_DIR || name == SNAPSHOT_DIR) {
            return Err(StorageError::NoIdentity { path, why: "there is no such file".to_owned() });
        }
        let (incarnation, state) = (new_incarnation(), FolderState::Unknown);
        let new = Claim { log: LogState::New, incarnation, state, cluster: None, version: None };
        write(dir, identity, &new)?;
        return Ok(new);
    }
    let (found, claim) = read(dir)?;
    if decides!(
        "folder-is-of-other-node",
        (found.node, found.cluster.as_str()) != (identity.node, one_line(&identity.cluster).as_str())
    ) {
        return Err(StorageError::NotOurs { path, found, expected: identity.clone() });
    }
    Ok(claim)
}

pub fn is_there(dir: &Dir) -> bool {
    dir.exists(FILE)
}

/// Reads the owner of an existing folder.
pub fn read(dir: &Dir) -> Result<(Identity, Claim), StorageError> {
    let path = dir.path().to_owned();
    if !dir.exists(FILE) {
        return Err(StorageError::NoIdentity { path, why: "there is no such file".to_owned() });
    }
    let bytes = dir.read(FILE).map_err(StorageError::io("reading", &path.join(FILE)))?;
    if bytes.starts_with(UNRELEASED) {
        return Err(StorageError::OtherBuild { path, by: OtherBuild(None) });
    }
    parse(&bytes).map_err(|unread| match unread {
        Unread::Damaged(why) => StorageError::NoIdentity { path, why },
        Unread::Version(found) => StorageError::FormatVersion { path, found, expected: LAYOUT_VERSION },
        Unread::OtherBuild(by) => StorageError::OtherBuild { path, by },
    })
}

pub fn write(dir: &Dir, identity: &Identity, claim: &Claim) -> Result<(), StorageError> {
    let path = dir.path().join(FILE);
    let stamp = Stamp::ours(claim.version.as_ref().map_or(version::FIRST, |version| version.number));
    dir.write_atomic(FILE, text(identity, claim, &stamp).as_bytes())
        .map_err(StorageError::io("writing", &path))
}

fn text(identity: &Identity, claim: &Claim, stamp: &Stamp) -> String {
    let mut content = format!(
        "{BEGIN} {LAYOUT_VERSION}\nnode {}\ncluster {}\nlog {}\nincarnation {}\nstate {}\n",
        identity.node,
        one_line(&identity.cluster),
        match claim.log {
            LogState::New => "new",
            LogState::Begun => "begun",
        },
        claim.incarnation,
        claim.state.word(),
    );
    if let Some(cluster) = claim.cluster {
        content.push_str(&format!("cluster-id {cluster}\n"));
    }
    if let Some(ClusterVersion { number, release }) = &claim.version {
        content.push_str(&format!("version {number} {}\n", one_line(release)));
    }
    let replicated = stamp.replicated.iter().map(|(version, layout)| format!(" {version}:{layout}"));
    content.push_str(&format!("layouts {}{}\n", stamp.folder, replicated.collect::<String>()));
    content.push_str(&format!("build {}\n", one_line(&stamp.build)));
    let crc = crc32fast::hash(content.as_bytes());
    format!("{content}crc {crc:08x}\n")
}

/// Replaces control characters: the file consists of lines.
fn one_line(name: &str) -> String {
    name.replace(|c: char| c.is_control(), " ").trim().to_owned()
}

/// Reason for the refusal of an identity file.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    Damaged(String),
    Version(u32),
    OtherBuild(OtherBuild),
}

fn damaged(why: &str) -> Unread {
    Unread::Damaged(why.to_owned())
}

fn parse(bytes: &[u8]) -> Result<(Identity, Claim), Unread> {
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let (content, crc) = text.rsplit_once("crc ").ok_or_else(|| damaged("it is cut short"))?;
    let crc = u32::from_str_radix(crc.trim_end(), 16).map_err(|_| damaged("its checksum is cut short"))?;
    if crc32fast::hash(content.as_bytes()) != crc {
        return Err(damaged("its checksum does not match"));
    }
    let mut lines = content.lines();
    let mut field = |name: &str| {
        let value = lines.next().and_then(|line| line.strip_prefix(name)).map(str::trim_start);
        value.ok_or_else(|| Unread::Damaged(format!("it does not say \"{name}\"")))
    };
    let version = field(BEGIN)?.parse().map_err(|_| damaged("its version is not a number"))?;
    match version {
        LAYOUT_VERSION => check_stamp(content)?,
        UNSTAMPED_VERSION => return Err(Unread::OtherBuild(OtherBuild(None))),
        other => return Err(Unread::Version(other)),
    }
    let node = field("node")?.parse().map(NodeId).map_err(|_| damaged("its node id is not a number"))?;
    let cluster = field("cluster")?.to_owned();
    let log = match field("log")? {
        "new" => LogState::New,
        "begun" => LogState::Begun,
        other => return Err(Unread::Damaged(format!("it says \"log {other}\""))),
    };
    let incarnation = Incarnation::parse(field("incarnation")?)
        .ok_or_else(|| damaged("its incarnation is not a number"))?;
    let word = field("state")?;
    let state =
        FolderState::named(word).ok_or_else(|| Unread::Damaged(format!("it says \"state {word}\"")))?;
    // Only these two fields are optional. A later release appends its fields behind them.
    let (mut id, mut version) = (None, None);
    for line in lines {
        if let Some(text) = line.strip_prefix("cluster-id ") {
            id = Some(text.parse().map_err(|_| damaged("its cluster id is not a number"))?);
        } else if let Some(text) = line.strip_prefix("version ") {
            let read = text.split_once(' ').and_then(|(number, release)| {
                Some(ClusterVersion { number: number.parse().ok()?, release: release.to_owned() })
            });
            version = Some(read.ok_or_else(|| damaged("its version is not a number and a release"))?);
        }
    }
    Ok((Identity { cluster, node }, Claim { log, incarnation, state, cluster: id, version }))
}

/// Checks the build of the file, before any field in a build-specific form is parsed.
fn check_stamp(content: &str) -> Result<(), Unread> {
    let line = |name: &str| content.lines().find_map(|line| line.strip_prefix(name));
    let build = line("build ").ok_or_else(|| damaged("it does not say \"build\""))?.to_owned();
    let stamp = line("layouts ").and_then(|text| {
        let mut words = text.split(' ');
        let folder = words.next()?.parse().ok()?;
        let pair = |word: &str| {
            let (version, layout) = word.split_once(':')?;
            Some((version.parse().ok()?, layout.parse().ok()?))
        };
        Some(Stamp { folder, replicated: words.map(pair).collect::<Option<_>>()?, build })
    });
    let stamp = stamp.ok_or_else(|| damaged("it does not say \"layouts\""))?;
    stamp.check().map_err(Unread::OtherBuild)
}

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
pub(crate) mod tests {
    use rowlock_state::Layout;

    use super::*;
    use crate::log::{record, segment};
    use crate::{folder, identity, snapshot};

    fn identity(cluster: &str, node: u64) -> Identity {
        Identity { cluster: cluster.to_owned(), node: NodeId(node) }
    }

    #[test]
    fn a_new_folder_is_claimed_and_recognized() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        let new = claim(&dir, &identity("prod", 1)).expect("is new");
        assert_eq!((new.log, new.state), (LogState::New, FolderState::Unknown));
        assert_eq!(claim(&dir, &identity("prod", 1)).expect("is ours"), new);
        let begun = Claim {
            log: LogState::Begun,
            state: FolderState::Member,
            cluster: Some(ClusterId(9)),
            ..new.clone()
        };
        write(&dir, &identity("prod", 1), &begun).expect("writes");
        assert_eq!(claim(&dir, &identity("prod", 1)).expect("is ours"), begun);
    }

    #[test]
    fn a_folder_of_another_node_or_cluster_is_refused_naming_both() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        claim(&dir, &identity("prod", 1)).expect("is new");
        for other in [identity("prod", 2), identity("test", 1)] {
            let text = claim(&dir, &other).expect_err("is not theirs").to_string();
            assert!(
                text.contains("node 1 of cluster \"prod\"") && text.contains(&other.to_string()),
                "{text}"
            );
        }
    }

    fn with_crc(content: &str) -> String {
        format!("{content}crc {:08x}\n", crc32fast::hash(content.as_bytes()))
    }

    #[test]
    fn another_layout_version_is_refused_naming_both() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        let content = with_crc("Rowlock data folder, layout 3\nsomething new\n");
        dir.write_atomic(FILE, content.as_bytes()).expect("writes");
        let text = claim(&dir, &identity("prod", 1)).expect_err("is newer").to_string();
        assert!(text.contains("version 3") && text.contains("version 2"), "{text}");
    }

    /// Guards against reading another build's folder as damaged, or replaying its log to another state.
    #[test]
    fn another_builds_folder_is_refused_by_name_and_unchanged() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        claim(&dir, &identity("prod", 1)).expect("is new");
        let ours = String::from_utf8(dir.read(FILE).expect("is there")).expect("is text");
        let (content, _) = ours.rsplit_once("crc ").expect("has a checksum");
        let Stamp { folder, replicated, build } = Stamp::ours(version::FIRST);
        let other = content.replace(&build, "0.2.0 (39abd609)");
        let state = replicated[0].1.to_string();
        for (content, name) in [
            (other.replace(&folder.to_string(), "00c0ffee"), "(0.2.0 (39abd609))"),
            (other.replace(&state, "00c0ffee"), "(0.2.0 (39abd609))"),
            ("Rowlock data folder, layout 1\nnode 1\ncluster prod\nlog begun\n".to_owned(), "another build"),
            ("rowlock data folder 1\nnode 1\ncluster prod\nlog begun\n".to_owned(), "another build"),
        ] {
            let bytes = with_crc(&content);
            dir.write_atomic(FILE, bytes.as_bytes()).expect("writes");
            let error = claim(&dir, &identity("prod", 1)).expect_err("is not read");
            let text = error.to_string();
            assert!(error.is_of_another_build() && text.contains(name), "{text}");
            assert!(text.contains("not damaged") && !text.contains("folder of its own"), "{text}");
            assert_eq!(dir.read(FILE).expect("is there"), bytes.as_bytes(), "nothing was changed");
        }
    }

    #[test]
    fn a_folder_has_the_layout_of_each_version_of_its_cluster() {
        let version = ClusterVersion { number: version::REHEARSED, release: "0.3.0".to_owned() };
        let (state, incarnation) = (FolderState::Member, Incarnation(1));
        let claim = Claim { log: LogState::Begun, incarnation, state, cluster: None, version: Some(version) };
        let text = text(&identity("prod", 1), &claim, &Stamp::ours(version::REHEARSED));
        assert!(text.contains(" 1:") && text.contains(" 2:"), "{text}");
        assert_eq!(parse(text.as_bytes()), Ok((identity("prod", 1), claim)));
    }

    #[test]
    fn a_damaged_or_lost_identity_is_not_rewritten() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        dir.sub(WAL_DIR).expect("creates");
        assert!(matches!(claim(&dir, &identity("prod", 1)), Err(StorageError::NoIdentity { .. })));
        dir.write_atomic(FILE, b"Rowlock data folder, layout 2\nnode 1\n").expect("writes");
        assert!(matches!(claim(&dir, &identity("prod", 1)), Err(StorageError::NoIdentity { .. })));
    }

    #[test]
    fn a_name_with_line_breaks_is_recognized() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        claim(&dir, &identity(" two\nlines ", 1)).expect("is new");
        claim(&dir, &identity(" two\nlines ", 1)).expect("is ours");
    }

    pub(crate) const GOLDEN: &str = "Rowlock data folder, layout 2\nnode 1\ncluster prod\nlog begun\nincarnation \
                                     00000000000000000000000000000abc\nstate admitted\ncluster-id \
                                     00000000000000000000000000000def\nversion 2 0.3.0 (a b)\nlayouts 00000007 \
                                     1:0000000a 2:0000000b\nbuild 0.2.0 (x)\ncrc ";

    #[test]
    fn the_file_reads_like_this() {
        let (incarnation, state) = (Incarnation(0xabc), FolderState::Admitted);
        let claim = Claim { log: LogState::Begun, incarnation, state, cluster: None, version: None };
        let plain = text(&identity("prod", 1), &claim, &Stamp::ours(version::FIRST));
        assert_eq!(parse(plain.as_bytes()), Ok((identity("prod", 1), claim.clone())));
        assert!(plain.contains("state admitted\nlayouts "), "{plain}");
        let version = ClusterVersion { number: 2, release: "0.3.0 (a b)".to_owned() };
        let claim = Claim { cluster: Some(ClusterId(0xdef)), version: Some(version), ..claim };
        let replicated = vec![(1, Layout(10)), (2, Layout(11))];
        let stamp = Stamp { folder: Layout(7), replicated, build: "0.2.0 (x)".to_owned() };
        assert_eq!(text(&identity("prod", 1), &claim, &stamp), format!("{GOLDEN}15e37698\n"));
    }

    #[test]
    fn the_fingerprint_is_that_of_the_golden_bytes() {
        let records = record::tests::golden().map(|(_, bytes)| bytes);
        let others = [
            segment::tests::GOLDEN,
            record::tests::GOLDEN,
            folder::tests::GOLDEN,
            identity::tests::GOLDEN,
            snapshot::file::tests::GOLDEN,
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
