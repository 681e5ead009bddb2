//! Opens a node's data folder: lock, identity, log, snapshots, in this order. Writes to the log only after
//! all parts have been checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::decides;
use rowlock_env::disk::{Dir, DirLock};
use rowlock_env::rare::{self, Rare};
use rowlock_env::{time, worker};
use rowlock_metrics::Metrics;
use rowlock_state::version::Versions;

use super::begin::refuse_marked;
use super::error::StorageError;
use super::folder::Folder;
use super::identity::{self, Claim, Identity, LogState};
use super::log::handle::Log;
use super::log::record::Record;
use super::log::recover::{self, Recovered};
use super::log::worker::{self as wal_worker, OnFatal};
use super::log::writer::{Writer, into_storage_error};
use super::memlog::MemLog;
use super::reserve::Reserve;
use super::snapshot::{SnapshotFile, SnapshotStore};
use super::{SNAPSHOT_DIR, WAL_DIR};
use crate::entry::{LogId, Vote};

/// File with the lock of the running process.
const LOCK: &str = "LOCK";
/// Default size of a log segment, in bytes. Creating or removing a segment makes the next flush wait for the
/// file system's journal and for the other pending writes: smaller segments cost more than they save.
pub const SEGMENT_BYTES: u64 = 64 << 20;

pub struct Storage;

pub struct Opened {
    /// The log; keep a clone for closing.
    pub log: Log,
    /// Snapshots of the state machine, and incoming snapshots.
    pub snapshots: SnapshotStore,
    /// The node's durable facts beside the log.
    pub folder: Folder,
    pub reserve: Reserve,
    pub report: RecoveryReport,
}

/// Contents of a data folder at its opening.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    pub segments: usize,
    pub records: u64,
    /// True if recovery cut an unfinished write off the log.
    pub torn: bool,
    /// True if other users had rights on the folder; the opener has removed these rights.
    pub exposed: bool,
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    /// Position before the log's first entry.
    pub purged: Option<LogId>,
    pub last: Option<LogId>,
    pub snapshot: Option<LogId>,
    /// Unusable snapshot files, renamed; an older snapshot or the log replaces them.
    pub damaged_snapshots: Vec<String>,
    /// Cut position, if the log's end conflicted with a newer snapshot. The inner `None` is an empty rest.
    pub cut_behind: Option<Option<LogId>>,
    pub took: Duration,
}

impl Storage {
    /// Opens the folder, or creates a new folder. The log's thread calls `on_fatal` once if the disk fails
    /// later.
    pub async fn open(
        dir: &Path,
        identity: Identity,
        on_fatal: OnFatal,
        metrics: Arc<Metrics>,
    ) -> Result<Opened, StorageError> {
        Self::open_with(dir, identity, on_fatal, metrics, SEGMENT_BYTES).await
    }

    /// Opens the folder like [`Storage::open`], with `segment_bytes` per segment.
    pub async fn open_with(
        dir: &Path,
        identity: Identity,
        on_fatal: OnFatal,
        metrics: Arc<Metrics>,
        segment_bytes: u64,
    ) -> Result<Opened, StorageError> {
        let path = dir.to_owned();
        let of_writer = metrics.clone();
        let work = move || read(path, identity, of_writer, segment_bytes);
        let Ready { writer, lock, log, snapshots, folder, reserve, report } =
            worker::run_blocking("storage-open", work).await?;
        if report.exposed {
            tracing::warn!(
                folder = %dir.display(),
                "other users of this machine could read or write the data folder; their rights have been removed. They may \
                 have read its data and digests of passwords: change the passwords if these users are not trusted"
            );
        }
        if report.torn {
            tracing::warn!("cut an unfinished, unacknowledged write off the log");
        }
        for name in &report.damaged_snapshots {
            rare::taken(Rare::SnapshotPutAside);
            tracing::error!(
                name,
                "a damaged snapshot file was renamed: check the disk, then remove the file"
            );
        }
        let log = Log::new(log, wal_worker::start(writer, lock, reserve.clone(), metrics, on_fatal));
        Ok(Opened { log, snapshots, folder, reserve, report })
    }
}

/// Refuses the folder of a cluster at a version unknown to this node, before reading anything else from the
/// folder. Blocks.
///
/// # Errors
/// [`StorageError::OtherRelease`], with both releases; or the file is unreadable.
pub fn check_release(path: &Path, versions: &Versions) -> Result<(), StorageError> {
    let dir = match Dir::open(path) {
        Ok(dir) if identity::is_there(&dir) => dir,
        // A new folder has no version.
        Ok(_) | Err(_) => return Ok(()),
    };
    let (_, claim) = identity::read(&dir)?;
    claim.version.map_or(Ok(()), |version| versions.check(&version)).map_err(StorageError::OtherRelease)
}

/// Contents of a stopped node's folder. The folder stays locked until the drop.
pub struct Stopped {
    pub identity: Identity,
    pub log: MemLog,
    /// Newest snapshot with a decodable state.
    pub snapshot: Option<SnapshotFile>,
    pub report: RecoveryReport,
    _lock: DirLock,
}

/// Checks a stopped node's folder and returns the contents. Reads everything, changes nothing. Blocks.
///
/// # Errors
/// The same errors as a start of the node.
pub fn verify(path: &Path) -> Result<Stopped, StorageError> {
    let begun = time::now();
    check_release(path, &Versions::of_this_release())?;
    let dir = Dir::open(path).map_err(StorageError::io("opening", path))?;
    refuse_marked(&dir)?;
    let (identity, claim) = identity::read(&dir)?;
    let lock = lock(&dir)?;
    let open = |name: &str| {
        let path = path.join(name);
        Dir::open(&path).map_err(StorageError::io("opening", &path))
    };
    let found = find_log(&open(WAL_DIR)?, &identity, claim.log)?;
    let (snapshot, damaged) =
        SnapshotStore::inspect(&open(SNAPSHOT_DIR)?, &identity, found.log.checkpoint().purged)?;
    let mut report = report(&found);
    report.snapshot = snapshot.as_ref().and_then(|snapshot| snapshot.meta().last_log_id);
    report.damaged_snapshots = damaged;
    report.took = begun.elapsed();
    Ok(Stopped { identity, log: found.log, snapshot, report, _lock: lock })
}

fn lock(dir: &Dir) -> Result<DirLock, StorageError> {
    dir.lock(LOCK).map_err(|source| match source.kind() {
        std::io::ErrorKind::WouldBlock => StorageError::InUse(dir.path().to_owned()),
        _ => StorageError::Io { action: "locking", path: dir.path().to_owned(), source },
    })
}

fn find_log(wal: &Dir, identity: &Identity, log_state: LogState) -> Result<Recovered, StorageError> {
    let found = recover::recover(wal, identity)?;
    if found.segments.is_empty() && log_state == LogState::Begun {
        let why = "all its segments are missing".to_owned();
        return Err(StorageError::Incomplete { path: wal.path().to_owned(), why });
    }
    Ok(found)
}

struct Ready {
    writer: Writer,
    lock: DirLock,
    log: MemLog,
    snapshots: SnapshotStore,
    folder: Folder,
    reserve: Reserve,
    report: RecoveryReport,
}

fn read(
    path: PathBuf,
    identity: Identity,
    metrics: Arc<Metrics>,
    segment_bytes: u64,
) -> Result<Ready, StorageError> {
    let begun = time::now();
    let dir = Dir::create(&path).map_err(StorageError::io("creating", &path))?;
    let make_private = |dir: &Dir| {
        dir.make_private().map_err(|source| StorageError::Exposed { path: dir.path().to_owned(), source })
    };
    refuse_marked(&dir)?;
    let mut exposed = make_private(&dir)?;
    let lock = lock(&dir)?;
    let reserve = Reserve::of(dir.clone()).or_room_for(segment_bytes);
    let claim = identity::claim(&dir, &identity)?;
    let wal = dir.sub(WAL_DIR).map_err(StorageError::io("creating the log's folder in", &path))?;
    let snapshots =
        dir.sub(SNAPSHOT_DIR).map_err(StorageError::io("creating the snapshots' folder in", &path))?;
    exposed |= make_private(&wal)? | make_private(&snapshots)?;
    // A killed process leaves unflushed names. The flush must precede any new write: otherwise a loss of
    // power removes these names together with acknowledged writes.
    for dir in [&dir, &wal, &snapshots] {
        dir.sync().map_err(StorageError::io("flushing", dir.path()))?;
    }

    let found = find_log(&wal, &identity, claim.log)?;
    let purged = found.log.checkpoint().purged;
    let (snapshots, damaged) = SnapshotStore::open(snapshots, identity.clone(), purged)?;
    let mut writer = Writer::open(wal, identity.clone(), segment_bytes, metrics, &found)?;
    if decides!("log-is-new", claim.log == LogState::New) {
        identity::write(&dir, &identity, &Claim { log: LogState::Begun, ..claim.clone() })?;
    }
    let mut report = report(&found);
    let mut log = found.log;
    if let Some(snapshot) = snapshots.current()
        && let Some(covered) = snapshot.meta().last_log_id
        && let Some(end) = conflict(&log, covered)
        && snapshot.state().is_ok()
    {
        // A node was killed between installing a snapshot and cutting its conflicting log. An undecodable
        // snapshot gives way to this log instead.
        let records = [Record::Truncate(end), Record::Purge(covered)];
        writer.write(&records).map_err(into_storage_error)?;
        for record in records {
            log.replay(record).expect("Invariant: neither is an entry");
        }
        report.cut_behind = Some(end);
        report.last = log.checkpoint().last;
        report.purged = log.checkpoint().purged;
        assert_eq!(report.last, Some(covered), "a log that was cut off ends with the snapshot");
    }
    assert_eq!(writer.checkpoint().last, log.checkpoint().last, "memory and disk end alike");
    assert_eq!(writer.checkpoint().vote, log.checkpoint().vote, "memory and disk know the same vote");
    assert_eq!(writer.checkpoint().purged, log.checkpoint().purged, "memory and disk begin alike");
    let index = |log_id: Option<LogId>| log_id.map(|log_id| log_id.index);
    if decides!("committed-is-beyond-log", index(report.committed) > index(report.last)) {
        rare::taken(Rare::CommittedBeyondLog);
        // The commit position lies ahead of torn entries: all remaining entries are committed.
        log.set_committed(report.last);
        report.committed = report.last;
    }
    report.snapshot = snapshots.current().and_then(|snapshot| snapshot.meta().last_log_id);
    report.damaged_snapshots = damaged;
    report.exposed = exposed;
    report.took = begun.elapsed();
    let folder = Folder::open(dir, identity, claim)?;
    Ok(Ready { writer, lock, log, snapshots, folder, reserve, report })
}

/// Returns the cut position if the log has another leader's entry at the snapshot's position.
fn conflict(log: &MemLog, covered: LogId) -> Option<Option<LogId>> {
    let last = log.checkpoint().last?;
    let there = log.range(&(covered.index..=covered.index)).next().map(|entry| entry.log_id);
    let is_another = there.is_some_and(|there| there != covered);
    if decides!("log-agrees-with-snapshot", last.index < covered.index || !is_another) {
        return None;
    }
    let before = covered.index.checked_sub(1);
    let kept = before.and_then(|before| log.range(&(before..=before)).next().map(|entry| entry.log_id));
    Some(kept.or(log.checkpoint().purged))
}

fn report(found: &Recovered) -> RecoveryReport {
    let checkpoint = found.log.checkpoint();
    RecoveryReport {
        segments: found.segments.len(),
        records: found.records,
        torn: found.torn,
        vote: checkpoint.vote,
        committed: checkpoint.committed,
        purged: checkpoint.purged,
        last: checkpoint.last,
        ..RecoveryReport::default()
    }
}
