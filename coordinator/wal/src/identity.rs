//! Whose data folder it is: a small text file, written when the folder is new, checked at every start.
//!
//! It also says whether the log has been begun: a folder whose log has vanished must not pass for a new one,
//! because the node would have forgotten its vote. And it holds the folder's incarnation, by which the other
//! nodes tell it from an emptied one, and what the node has become in its cluster so far. A folder of version
//! 0.1 has no line for these.

use std::fmt;

use rowlock_env::disk::Dir;
use rowlock_env::rng;
use rowlock_proto::NodeId;
use rowlock_types::incarnation::Incarnation;

use super::error::StorageError;

/// Name of the file.
const FILE: &str = "identity";
/// Version of the folder's layout. Segments and snapshots carry their own besides.
pub const LAYOUT_VERSION: u32 = 1;

/// Who a data folder belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the cluster.
    pub cluster: String,
    /// The member.
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

/// Of a new folder.
pub(super) fn new_incarnation() -> Incarnation {
    Incarnation(u128::from(rng::u64()) << 64 | u128::from(rng::u64()))
}

/// What the node of this folder has become in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FolderState {
    /// It may have lost its data: it must neither vote nor acknowledge anything yet.
    Unknown,
    /// The others have said that they never knew another folder of it.
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

/// What the file says besides whose folder it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of the log.
    pub log: LogState,
    /// Unset in a folder of version 0.1.
    pub life: Option<(Incarnation, FolderState)>,
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
        let new = Claim { log: LogState::New, life: Some((new_incarnation(), FolderState::Unknown)) };
        write(dir, identity, new)?;
        return Ok(new);
    }
    let (found, claim) = read(dir)?;
    if (found.node, found.cluster.as_str()) != (identity.node, one_line(&identity.cluster).as_str()) {
        return Err(StorageError::NotOurs { path, found, expected: identity.clone() });
    }
    Ok(claim)
}

/// Whose an existing folder is.
pub fn read(dir: &Dir) -> Result<(Identity, Claim), StorageError> {
    let path = dir.path().to_owned();
    if !dir.exists(FILE) {
        return Err(StorageError::NoIdentity { path, why: "there is no such file".to_owned() });
    }
    let bytes = dir.read(FILE).map_err(StorageError::io("reading", &path.join(FILE)))?;
    let (version, found, claim) =
        parse(&bytes).map_err(|why| StorageError::NoIdentity { path: path.clone(), why })?;
    if version != LAYOUT_VERSION {
        return Err(StorageError::FormatVersion { path, found: version, expected: LAYOUT_VERSION });
    }
    Ok((found, claim))
}

/// Replaces the file.
pub fn write(dir: &Dir, identity: &Identity, claim: Claim) -> Result<(), StorageError> {
    let path = dir.path().join(FILE);
    dir.write_atomic(FILE, text(identity, claim).as_bytes()).map_err(StorageError::io("writing", &path))
}

fn text(identity: &Identity, claim: Claim) -> String {
    let mut content = format!(
        "rowlock data folder {LAYOUT_VERSION}\nnode {}\ncluster {}\nlog {}\n",
        identity.node,
        one_line(&identity.cluster),
        match claim.log {
            LogState::New => "new",
            LogState::Begun => "begun",
        },
    );
    if let Some((incarnation, state)) = claim.life {
        content.push_str(&format!("incarnation {incarnation}\nstanding {}\n", state.word()));
    }
    let crc = crc32fast::hash(content.as_bytes());
    format!("{content}crc {crc:08x}\n")
}

/// The name as it stands in the file, which is made of lines.
fn one_line(name: &str) -> String {
    name.replace(|c: char| c.is_control(), " ").trim().to_owned()
}

fn parse(bytes: &[u8]) -> Result<(u32, Identity, Claim), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let (content, crc) = text.rsplit_once("crc ").ok_or("it is cut short")?;
    let crc = u32::from_str_radix(crc.trim_end(), 16).map_err(|_| "its checksum is cut short".to_owned())?;
    if crc32fast::hash(content.as_bytes()) != crc {
        return Err("its checksum does not match".to_owned());
    }
    let mut lines = content.lines();
    let mut field = |name: &str| {
        let value = lines.next().and_then(|line| line.strip_prefix(name)).map(str::trim_start);
        value.ok_or_else(|| format!("it does not say \"{name}\""))
    };
    let version =
        field("rowlock data folder")?.parse().map_err(|_| "its version is not a number".to_owned())?;
    if version != LAYOUT_VERSION {
        // Another version's other lines may mean anything.
        let claim = Claim { log: LogState::Begun, life: None };
        return Ok((version, Identity { cluster: String::new(), node: NodeId(0) }, claim));
    }
    let node = field("node")?.parse().map(NodeId).map_err(|_| "its node id is not a number".to_owned())?;
    let cluster = field("cluster")?.to_owned();
    let log = match field("log")? {
        "new" => LogState::New,
        "begun" => LogState::Begun,
        other => return Err(format!("it says \"log {other}\"")),
    };
    let life = match field("incarnation") {
        Ok(number) => {
            let incarnation = Incarnation::parse(number).ok_or("its incarnation is not a number")?;
            let word = field("standing")?;
            let state = FolderState::named(word).ok_or_else(|| format!("it says \"standing {word}\""))?;
            Some((incarnation, state))
        }
        Err(_) => None,
    };
    Ok((version, Identity { cluster, node }, Claim { log, life }))
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
        assert_eq!((new.log, new.life.map(|life| life.1)), (LogState::New, Some(FolderState::Unknown)));
        assert_eq!(claim(&dir, &identity("prod", 1)).expect("is ours"), new);
        let life = new.life.map(|(incarnation, _)| (incarnation, FolderState::Member));
        let begun = Claim { log: LogState::Begun, life };
        write(&dir, &identity("prod", 1), begun).expect("writes");
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
        let content = "rowlock data folder 2\nsomething new\n";
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
        dir.write_atomic(FILE, b"rowlock data folder 1\nnode 1\n").expect("writes");
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
    fn the_file_reads_like_this_and_that_of_version_0_1_is_read() {
        let old = "rowlock data folder 1\nnode 1\ncluster prod\nlog begun\ncrc f2de9a0c\n";
        let claim = Claim { log: LogState::Begun, life: None };
        assert_eq!(text(&identity("prod", 1), claim), old);
        assert_eq!(parse(old.as_bytes()), Ok((1, identity("prod", 1), claim)));
        let claim = Claim { life: Some((Incarnation(0xabc), FolderState::Admitted)), ..claim };
        let golden = "rowlock data folder 1\nnode 1\ncluster prod\nlog begun\nincarnation \
                      00000000000000000000000000000abc\nstanding admitted\ncrc e30c1f4f\n";
        assert_eq!(text(&identity("prod", 1), claim), golden);
        assert_eq!(parse(golden.as_bytes()), Ok((1, identity("prod", 1), claim)));
    }
}
