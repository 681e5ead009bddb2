//! Whose data folder it is: a small text file, written when the folder is new, checked at every start.
//!
//! It also says whether the log has been begun: a folder whose log has vanished must not pass for a new one,
//! because the node would have forgotten its vote. And it holds the folder's incarnation, by which the other
//! nodes tell it from an emptied one, and what the node has become in its cluster so far.

use std::fmt;

use rowlock_env::disk::Dir;
use rowlock_env::rng;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_state::ClusterVersion;
use rowlock_types::incarnation::Incarnation;

use super::error::StorageError;

const FILE: &str = "identity";
/// Version of the folder's layout, since release 0.2.0. Segments and snapshots carry their own besides.
pub const LAYOUT_VERSION: u32 = 1;
/// Beginning of the file, before the version.
const BEGIN: &str = "Rowlock data folder, layout";
/// Beginning of the file before the first release.
const UNRELEASED: &[u8] = b"rowlock data folder ";

/// The owner of a data folder.
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
    /// A number for the cluster's name, stable for ever (FNV-1a), for headers of fixed size.
    pub fn cluster_hash(&self) -> u64 {
        self.cluster
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// Whether a folder has ever held a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    /// Not yet: there may be no segment.
    New,
    /// There must be segments.
    Begun,
}

/// Draws the incarnation of a new folder.
pub(super) fn new_incarnation() -> Incarnation {
    Incarnation(u128::from(rng::u64()) << 64 | u128::from(rng::u64()))
}

/// The state of this folder's node in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FolderState {
    /// It may have lost its data: it must neither vote nor acknowledge anything yet.
    Unknown,
    /// The others have confirmed that they never knew another folder of it.
    Admitted,
    /// It has applied a membership with itself in it.
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

/// The contents of the file beside the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub log: LogState,
    pub incarnation: Incarnation,
    pub state: FolderState,
    /// Unset until the node has heard of it.
    pub cluster: Option<ClusterId>,
    /// The version of the cluster. Unset in the first version.
    pub version: Option<ClusterVersion>,
}

/// Checks that the folder is of `identity`, or makes it so if it is new.
pub fn claim(dir: &Dir, identity: &Identity) -> Result<Claim, StorageError> {
    let path = dir.path().to_owned();
    if !dir.exists(FILE) {
        let names = dir.list().map_err(StorageError::io("listing", &path))?;
        // The lock file and an interrupted first `write_atomic` are no content.
        if names.iter().any(|name| name == super::WAL_DIR || name == super::SNAPSHOT_DIR) {
            return Err(StorageError::NoIdentity { path, why: "there is no such file".to_owned() });
        }
        let (incarnation, state) = (new_incarnation(), FolderState::Unknown);
        let new = Claim { log: LogState::New, incarnation, state, cluster: None, version: None };
        write(dir, identity, &new)?;
        return Ok(new);
    }
    let (found, claim) = read(dir)?;
    if (found.node, found.cluster.as_str()) != (identity.node, one_line(&identity.cluster).as_str()) {
        return Err(StorageError::NotOurs { path, found, expected: identity.clone() });
    }
    Ok(claim)
}

/// Whether there is a file.
pub fn is_there(dir: &Dir) -> bool {
    dir.exists(FILE)
}

/// Whose an existing folder is.
pub fn read(dir: &Dir) -> Result<(Identity, Claim), StorageError> {
    let path = dir.path().to_owned();
    if !dir.exists(FILE) {
        return Err(StorageError::NoIdentity { path, why: "there is no such file".to_owned() });
    }
    let bytes = dir.read(FILE).map_err(StorageError::io("reading", &path.join(FILE)))?;
    if bytes.starts_with(UNRELEASED) {
        return Err(StorageError::Unreleased(path));
    }
    parse(&bytes).map_err(|unread| match unread {
        Unread::Damaged(why) => StorageError::NoIdentity { path, why },
        Unread::Version(found) => StorageError::FormatVersion { path, found, expected: LAYOUT_VERSION },
    })
}

pub fn write(dir: &Dir, identity: &Identity, claim: &Claim) -> Result<(), StorageError> {
    let path = dir.path().join(FILE);
    dir.write_atomic(FILE, text(identity, claim).as_bytes()).map_err(StorageError::io("writing", &path))
}

fn text(identity: &Identity, claim: &Claim) -> String {
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
    let crc = crc32fast::hash(content.as_bytes());
    format!("{content}crc {crc:08x}\n")
}

/// The name as it stands in the file, which is made of lines.
fn one_line(name: &str) -> String {
    name.replace(|c: char| c.is_control(), " ").trim().to_owned()
}

/// Why the file does not say whose folder it is.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    Damaged(String),
    /// The file has another layout.
    Version(u32),
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
    if version != LAYOUT_VERSION {
        return Err(Unread::Version(version));
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
    // Only these two may be missing. What a later release adds stands behind them.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(cluster: &str, node: u64) -> Identity {
        Identity { cluster: cluster.to_owned(), node: NodeId(node) }
    }

    #[test]
    fn a_new_folder_is_claimed_and_known_again() {
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

    #[test]
    fn another_layout_version_is_refused_naming_both() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        let content = "Rowlock data folder, layout 2\nsomething new\n";
        let crc = crc32fast::hash(content.as_bytes());
        dir.write_atomic(FILE, format!("{content}crc {crc:08x}\n").as_bytes()).expect("writes");
        let text = claim(&dir, &identity("prod", 1)).expect_err("is newer").to_string();
        assert!(text.contains("version 2") && text.contains("version 1"), "{text}");
    }

    #[test]
    fn a_damaged_or_lost_identity_is_not_written_anew() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        dir.sub(crate::WAL_DIR).expect("creates");
        assert!(matches!(claim(&dir, &identity("prod", 1)), Err(StorageError::NoIdentity { .. })));
        dir.write_atomic(FILE, b"Rowlock data folder, layout 1\nnode 1\n").expect("writes");
        assert!(matches!(claim(&dir, &identity("prod", 1)), Err(StorageError::NoIdentity { .. })));
    }

    #[test]
    fn a_name_with_line_breaks_is_known_again() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        claim(&dir, &identity(" two\nlines ", 1)).expect("is new");
        claim(&dir, &identity(" two\nlines ", 1)).expect("is ours");
    }

    #[test]
    fn a_folder_of_an_unreleased_version_is_refused_and_says_what_to_do() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        let old = b"rowlock data folder 1\nnode 1\ncluster prod\nlog begun\ncrc f2de9a0c\n";
        dir.write_atomic(FILE, old).expect("writes");
        let text = claim(&dir, &identity("prod", 1)).expect_err("is not read").to_string();
        assert!(text.contains("unreleased version") && text.contains("start the cluster anew"), "{text}");
        assert_eq!(dir.read(FILE).expect("is there"), old, "nothing was changed");
    }

    #[test]
    fn the_file_reads_like_this() {
        let (incarnation, state) = (Incarnation(0xabc), FolderState::Admitted);
        let claim = Claim { log: LogState::Begun, incarnation, state, cluster: None, version: None };
        let golden = "Rowlock data folder, layout 1\nnode 1\ncluster prod\nlog begun\nincarnation \
                      00000000000000000000000000000abc\nstate admitted\ncrc 3375ca24\n";
        assert_eq!(text(&identity("prod", 1), &claim), golden);
        assert_eq!(parse(golden.as_bytes()), Ok((identity("prod", 1), claim.clone())));
        let claim = Claim { cluster: Some(ClusterId(0xdef)), ..claim };
        let golden = "Rowlock data folder, layout 1\nnode 1\ncluster prod\nlog begun\nincarnation \
                      00000000000000000000000000000abc\nstate admitted\ncluster-id \
                      00000000000000000000000000000def\ncrc 7f7fa6e9\n";
        assert_eq!(text(&identity("prod", 1), &claim), golden);
        assert_eq!(parse(golden.as_bytes()), Ok((identity("prod", 1), claim.clone())));
        let version = ClusterVersion { number: 2, release: "0.3.0 (a b)".to_owned() };
        let claim = Claim { version: Some(version), ..claim };
        let text = text(&identity("prod", 1), &claim);
        assert!(text.contains("def\nversion 2 0.3.0 (a b)\ncrc "), "{text}");
        assert_eq!(parse(text.as_bytes()), Ok((identity("prod", 1), claim)));
    }
}
