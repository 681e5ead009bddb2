//! Why a data folder cannot be used, and what a person must do about it.
//!
//! Two kinds: [`StorageError`] when a node opens its folder, [`DiskFailure`] when the disk fails under a
//! running node.

use std::io;
use std::path::{Path, PathBuf};

use rowlock_proto::{ClusterId, NodeId};
use rowlock_types::advice::Replace;
use rowlock_types::versions::{OtherRelease, RELEASE, this_build};

use super::identity::Identity;
use super::layout::OtherBuild;
use super::log::segment::{HeaderError, SegmentSeq};

/// After an error that could have any cause.
const LOOK_ADVICE: &str = "Look at the kernel's log, check the disk, and start the node again.";
/// After a write or flush that failed for any cause.
const FAILED_WRITE_ADVICE: &str = "After a failed write or flush nobody knows what is on the disk, so this node stops \
     and does not retry. Nothing that was acknowledged by the cluster is lost. Look at the kernel's log and check the \
     disk; then start the node again: it checks its log and says if it cannot be used.";

/// A data folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system said no.
    #[error("{action} {} failed: {source}. {}", path.display(), advice(source.kind()).unwrap_or(LOOK_ADVICE))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// Others may read it, and that cannot be changed.
    #[error(
        "other users of this machine have rights on the data folder {}, and they cannot be taken away: {source}. Run the \
         node as the owner of the folder (chown), on a file system that keeps rights, or name a folder below this one.",
        path.display()
    )]
    Exposed { path: PathBuf, source: io::Error },
    /// Another process has it.
    #[error(
        "the data folder {} is in use by another process. Stop that process, or give this node a folder of its own.",
        .0.display()
    )]
    InUse(PathBuf),
    /// The state is another cluster's.
    #[error(
        "the data folder {} is of the cluster with the id {known}, and its state of the one with the id {found}. Files of \
         two clusters were mixed, one of them restored from a backup. {}",
        path.display(), Replace::unasked(None)
    )]
    OtherCluster {
        path: PathBuf,
        /// As the folder says.
        known: ClusterId,
        /// As the state says.
        found: ClusterId,
    },
    /// It was to be a new one.
    #[error(
        "the data folder {} has content already. Nothing was changed. Give an empty folder, or move this one away.",
        .0.display()
    )]
    NotEmpty(PathBuf),
    /// A restore has not come to its end.
    #[error(
        "the data folder {} is half restored: `rowlock backup restore` was interrupted. Nothing was changed. Run it again \
         with the same arguments: it fills the folders of all voters that it was to fill. Do not empty this folder \
         instead: voters with empty folders form an empty cluster, whose fencing tokens begin at 1.",
        .0.display()
    )]
    HalfRestored(PathBuf),
    /// It belongs to another node or cluster.
    #[error(
        "the data folder {} belongs to {found}, but this is {expected}. Nothing was changed. Correct the node id, the \
         cluster name or the data folder in the configuration.",
        path.display()
    )]
    NotOurs { path: PathBuf, found: Identity, expected: Identity },
    /// The cluster has gone over to a version that this release does not know, or is not there yet.
    #[error("{0}")]
    OtherRelease(OtherRelease),
    /// Another version of Rowlock wrote it.
    #[error(
        "{} has format version {found}, this version of Rowlock reads version {expected}. Nothing was \
         changed. Run the version of Rowlock that wrote it.",
        path.display()
    )]
    FormatVersion { path: PathBuf, found: u32, expected: u32 },
    /// A build of the same version wrote it, in bytes that this one does not read.
    #[error(
        "{} was written by another build of release {RELEASE}{}, and is not readable by this one ({}). It is not damaged, \
         and nothing was changed. Go on with that build. To go over to this one with the data: save a backup and export it \
         with that build, and import it into a new cluster of this one (docs/maintenance.md, \"Another build of one \
         release\").",
        path.display(), by.0.as_ref().map_or(String::new(), |build| format!(" ({})", build.escape_debug())), this_build()
    )]
    OtherBuild { path: PathBuf, by: OtherBuild },
    /// It has content but does not say whose.
    #[error(
        "the data folder {} has content, but its file `identity` is missing or damaged ({why}). If this is the right \
         folder: {}",
        path.display(), Replace::unasked(None)
    )]
    NoIdentity {
        path: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// The list of the nodes that this one knows cannot be read.
    #[error(
        "the file {} is damaged. It says which nodes this one knows. {}",
        path.display(), Replace::unasked(None)
    )]
    KnownNodes { path: PathBuf },
    /// The beginning of a segment cannot be read.
    #[error("the log segment {} cannot be used: {why}. {}", path.display(), Replace::unasked(None))]
    SegmentHeader { path: PathBuf, why: HeaderError },
    /// A segment is not of this log.
    #[error(
        "the log segment {} is segment {} of node {node}, but it lies in the folder of {expected} under another name. \
         A person has copied or renamed files. {}",
        path.display(), seq.0, Replace::unasked(Some(expected.node))
    )]
    ForeignSegment {
        path: PathBuf,
        /// Which one it says it is.
        seq: SegmentSeq,
        /// Whose it says it is.
        node: NodeId,
        /// Whose folder it is.
        expected: Identity,
    },
    /// A segment is damaged in the middle.
    #[error(
        "the log segment {} is damaged at offset {offset}: {why}. This is not the trace of an interrupted write, so \
         nothing was cut. {}",
        path.display(), Replace::unasked(None)
    )]
    Damaged {
        path: PathBuf,
        /// Where the unreadable record is.
        offset: u64,
        /// Why it is known to be damage.
        why: String,
    },
    /// Segments or entries are missing.
    #[error("the log in {} is incomplete: {why}. {}", path.display(), Replace::unasked(None))]
    Incomplete {
        /// The folder of the log.
        path: PathBuf,
        why: String,
    },
    /// No snapshot can be used, and the log does not reach back to the beginning.
    #[error("no usable snapshot in {}: {why}. {}", path.display(), Replace::unasked(None))]
    NoSnapshot {
        /// The folder of the snapshots.
        path: PathBuf,
        why: String,
    },
    /// A snapshot from elsewhere is not what it claims to be.
    #[error("the snapshot {} is refused: {why}", path.display())]
    BadSnapshot {
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
}

impl StorageError {
    /// For `map_err`: says what was tried on which file.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
        let path = path.to_owned();
        move |source| StorageError::Io { action, path, source }
    }

    /// Tells a full or failing disk from a folder that a person must correct: a start after a while may help.
    pub fn is_of_the_disk(&self) -> bool {
        match self {
            StorageError::Io { source, .. } | StorageError::Exposed { source, .. } => {
                is_of_the_disk(source.kind())
            }
            _ => false,
        }
    }

    /// Tells the bytes of another build or release from damaged ones: they may be whole.
    pub fn is_of_another_build(&self) -> bool {
        use StorageError::{FormatVersion, OtherBuild, OtherRelease};
        matches!(self, OtherBuild { .. } | OtherRelease(_) | FormatVersion { .. })
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        let kind = match &error {
            StorageError::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// The disk failed under a running node: nothing is acknowledged any more, the node must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFailure {
    pub action: &'static str,
    pub path: PathBuf,
    pub kind: io::ErrorKind,
    pub text: String,
}

impl DiskFailure {
    /// Makes the error of a failed operation.
    pub fn new(action: &'static str, path: &Path, error: &io::Error) -> Self {
        DiskFailure { action, path: path.to_owned(), kind: error.kind(), text: error.to_string() }
    }

    /// Returns advice for the operator.
    pub fn advice(&self) -> &'static str {
        advice(self.kind).unwrap_or(FAILED_WRITE_ADVICE)
    }

    /// As an error for those who wait for the write.
    pub fn to_io(&self) -> io::Error {
        io::Error::new(self.kind, self.to_string())
    }
}

impl std::fmt::Display for DiskFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} failed: {}. {}", self.action, self.path.display(), self.text, self.advice())
    }
}

impl std::error::Error for DiskFailure {}

/// Why a write did not get to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// There is no room, and nothing was flushed or failed to be: the same bytes may be written again.
    NoRoom(DiskFailure),
    /// The content of the disk is unknown.
    Failed(DiskFailure),
}

impl Unwritten {
    /// Makes the error of an operation before any flush.
    pub fn before_flush(action: &'static str, path: &Path, error: &io::Error) -> Self {
        let failure = DiskFailure::new(action, path, error);
        if is_for_lack_of_room(error.kind()) {
            Unwritten::NoRoom(failure)
        } else {
            Unwritten::Failed(failure)
        }
    }

    /// Makes the error of a flush, or of a later operation.
    pub fn of_flush(action: &'static str, path: &Path, error: &io::Error) -> Self {
        Unwritten::Failed(DiskFailure::new(action, path, error))
    }

    pub fn failure(self) -> DiskFailure {
        match self {
            Unwritten::NoRoom(failure) | Unwritten::Failed(failure) => failure,
        }
    }
}

/// The file system, or this user's part of it, is full.
pub fn is_for_lack_of_room(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Tells a full or failing disk from a path that is wrong or not permitted.
pub fn is_of_the_disk(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, InvalidFilename, InvalidInput, IsADirectory, NotADirectory,
        NotFound, PermissionDenied, TooManyLinks, Unsupported, WouldBlock,
    };
    !matches!(
        kind,
        AlreadyExists
            | DirectoryNotEmpty
            | InvalidFilename
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | NotFound
            | PermissionDenied
            | TooManyLinks
            | Unsupported
            | WouldBlock
    )
}

/// Returns advice for the operator if the kind of the error tells the cause.
fn advice(kind: io::ErrorKind) -> Option<&'static str> {
    match kind {
        kind if is_for_lack_of_room(kind) => Some(
            "The disk is full. Nothing that was acknowledged is lost: free space on this file system (Rowlock needs \
             room for one log segment and one snapshot) and start the node again.",
        ),
        io::ErrorKind::ReadOnlyFilesystem => Some(
            "The file system has become read-only, usually after a disk error. Look at the kernel's log, repair or \
             replace the disk, and start the node again.",
        ),
        io::ErrorKind::PermissionDenied => Some(
            "Give the user that runs Rowlock the right to read and write this folder and everything in it.",
        ),
        _ => None,
    }
}
