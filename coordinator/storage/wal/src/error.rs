//! Errors of a data folder, with the operator's next step.
//!
//! [`StorageError`] is the refusal to open a folder; [`DiskFailure`] is the failure of the disk under a
//! running node.

use std::io;
use std::path::{Path, PathBuf};

use rowlock_proto::{ClusterId, NodeId};
use rowlock_state::version::{OtherRelease, RELEASE, this_build};

use super::identity::{Identity, OtherBuild};
use super::log::segment::{HeaderError, SegmentSeq};
use crate::advice::Replace;

/// Advice for an error without a known cause.
const UNKNOWN_CAUSE_ADVICE: &str = "Look at the kernel's log, check the disk, and start the node again.";
/// Advice for a failed write or flush without a known cause.
const FAILED_WRITE_ADVICE: &str = "After a failed write or flush the content of the disk is unknown, so this node stops \
     and does not retry. Nothing that was acknowledged by the cluster is lost. Look at the kernel's log and check the \
     disk; then start the node again: it checks its log and says if it cannot be used.";

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// An operation failed in the operating system.
    #[error("{action} {} failed: {source}. {}", path.display(), advice(source.kind()).unwrap_or(UNKNOWN_CAUSE_ADVICE))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// Other users have rights on the folder, and the rights cannot be removed.
    #[error(
        "other users of this machine have rights on the data folder {}, and they cannot be taken away: {source}. Run the \
         node as the owner of the folder (chown), on a file system that keeps rights, or name a folder below this one.",
        path.display()
    )]
    Exposed { path: PathBuf, source: io::Error },
    #[error(
        "the data folder {} is in use by another process. Stop that process, or give this node a folder of its own.",
        .0.display()
    )]
    InUse(PathBuf),
    #[error(
        "the data folder {} is of the cluster with the id {known}, and its state of the one with the id {found}. Files of \
         two clusters were mixed, one of them restored from a backup. {}",
        path.display(), Replace::unasked(None)
    )]
    OtherCluster {
        path: PathBuf,
        /// Cluster in the file `identity`.
        known: ClusterId,
        /// Cluster in the state.
        found: ClusterId,
    },
    #[error(
        "the data folder {} has content already. Nothing was changed. Give an empty folder, or move this one away.",
        .0.display()
    )]
    NotEmpty(PathBuf),
    #[error(
        "the data folder {} is half restored: `rowlock backup restore` was interrupted. Nothing was changed. Run it again \
         with the same arguments: it fills the folders of all voters that it was to fill. Do not empty this folder \
         instead: voters with empty folders form an empty cluster, whose fencing tokens begin at 1.",
        .0.display()
    )]
    HalfRestored(PathBuf),
    /// The folder belongs to another node or cluster.
    #[error(
        "the data folder {} belongs to {found}, but this is {expected}. Nothing was changed. Correct the node id, the \
         cluster name or the data folder in the configuration.",
        path.display()
    )]
    NotOurs { path: PathBuf, found: Identity, expected: Identity },
    /// The cluster has adopted a version unknown to this release, or has not reached the least version of
    /// this release.
    #[error("{0}")]
    OtherRelease(OtherRelease),
    /// Another version of Rowlock wrote the file.
    #[error(
        "{} has format version {found}, this version of Rowlock reads version {expected}. Nothing was \
         changed. Run the version of Rowlock that wrote it.",
        path.display()
    )]
    FormatVersion { path: PathBuf, found: u32, expected: u32 },
    /// Another build of the same version wrote the file, in a format unknown to this build.
    #[error(
        "{} was written by another build of release {RELEASE}{}, and is not readable by this one ({}). It is not damaged, \
         and nothing was changed. Go on with that build. To go over to this one with the data: save a backup and export it \
         with that build, and import it into a new cluster of this one (docs/operations.md, \"Another build of one \
         release\").",
        path.display(), by.0.as_ref().map_or(String::new(), |build| format!(" ({})", build.escape_debug())), this_build()
    )]
    OtherBuild { path: PathBuf, by: OtherBuild },
    /// The folder has content and no readable `identity`.
    #[error(
        "the data folder {} has content, but its file `identity` is missing or damaged ({why}). If this is the right \
         folder: {}",
        path.display(), Replace::unasked(None)
    )]
    NoIdentity { path: PathBuf, why: String },
    #[error(
        "the file {} is damaged. It says which nodes this one knows. {}",
        path.display(), Replace::unasked(None)
    )]
    KnownNodes { path: PathBuf },
    /// The header of a segment is unreadable.
    #[error("the log segment {} cannot be used: {why}. {}", path.display(), Replace::unasked(None))]
    SegmentHeader { path: PathBuf, why: HeaderError },
    #[error(
        "the log segment {} is segment {} of node {node}, but it lies in the folder of {expected} under another name. \
         A person has copied or renamed files. {}",
        path.display(), seq.0, Replace::unasked(Some(expected.node))
    )]
    ForeignSegment {
        path: PathBuf,
        /// Sequence number in the header.
        seq: SegmentSeq,
        /// Node in the header.
        node: NodeId,
        expected: Identity,
    },
    #[error(
        "the log segment {} is damaged at offset {offset}: {why}. This is not the trace of an interrupted write, so \
         nothing was cut. {}",
        path.display(), Replace::unasked(None)
    )]
    Damaged {
        path: PathBuf,
        /// Offset of the unreadable record, in bytes.
        offset: u64,
        /// Evidence of the damage.
        why: String,
    },
    /// Segments or entries are missing.
    #[error("the log in {} is incomplete: {why}. {}", path.display(), Replace::unasked(None))]
    Incomplete { path: PathBuf, why: String },
    /// No snapshot is usable, and the log does not reach back to the beginning.
    #[error("no usable snapshot in {}: {why}. {}", path.display(), Replace::unasked(None))]
    NoSnapshot { path: PathBuf, why: String },
    /// `acknowledge = "written"` needs to know whether the machine was started since.
    #[error(
        "acknowledge = \"written\" in [locks] needs the id of this run of the kernel, and the file \
         /proc/sys/kernel/random/boot_id cannot be read. Run the node on Linux with /proc, or set acknowledge = \"flushed\"."
    )]
    NoBootId,
    #[error("the snapshot {} is refused: {why}", path.display())]
    BadSnapshot { path: PathBuf, why: String },
}

impl StorageError {
    /// Makes a converter for `map_err`, with the failed action and the file.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
        let path = path.to_owned();
        move |source| StorageError::Io { action, path, source }
    }

    /// Returns true for a full or failing disk: a later start may succeed without a correction by the
    /// operator.
    pub fn is_of_the_disk(&self) -> bool {
        match self {
            StorageError::Io { source, .. } | StorageError::Exposed { source, .. } => {
                is_of_the_disk(source.kind())
            }
            _ => false,
        }
    }

    /// Returns true if another build or release wrote the bytes: the data may be intact.
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

/// Failure of the disk under a running node: the log acknowledges nothing more, and the node must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFailure {
    pub action: &'static str,
    pub path: PathBuf,
    pub kind: io::ErrorKind,
    pub text: String,
}

impl DiskFailure {
    pub fn new(action: &'static str, path: &Path, error: &io::Error) -> Self {
        DiskFailure { action, path: path.to_owned(), kind: error.kind(), text: error.to_string() }
    }

    pub fn advice(&self) -> &'static str {
        advice(self.kind).unwrap_or(FAILED_WRITE_ADVICE)
    }

    /// Converts the failure for the waiters of the write.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// No space, before any flush: a retry may write the same bytes.
    NoRoom(DiskFailure),
    /// The content of the disk is unknown.
    Failed(DiskFailure),
}

impl Unwritten {
    /// Makes the error of an operation before the flush.
    pub fn before_flush(action: &'static str, path: &Path, error: &io::Error) -> Self {
        let failure = DiskFailure::new(action, path, error);
        if is_for_lack_of_room(error.kind()) {
            Unwritten::NoRoom(failure)
        } else {
            Unwritten::Failed(failure)
        }
    }

    /// Makes the error of a flush, or of an operation after the flush.
    pub fn of_flush(action: &'static str, path: &Path, error: &io::Error) -> Self {
        Unwritten::Failed(DiskFailure::new(action, path, error))
    }

    pub fn failure(self) -> DiskFailure {
        match self {
            Unwritten::NoRoom(failure) | Unwritten::Failed(failure) => failure,
        }
    }
}

/// Returns true if the file system or this user's quota is full.
pub fn is_for_lack_of_room(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns false for a wrong or forbidden path, and true for a full or failing disk.
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

/// Returns advice for an error kind with a known cause.
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
