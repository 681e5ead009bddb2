//! Opens a node's data folder: lock, identity, log, snapshots, in this order. Writes to the log only after
//! all parts have been checked.
//!
//! Data folders with an initial state, for the members of a restored cluster.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::disk::{Dir, DirLock};
use rowlock_env::rare::{self, Rare};
use rowlock_env::{decides, time, worker};
use rowlock_metrics::Metrics;
use rowlock_proto::ClusterId;
use rowlock_state::version::Versions;

use super::entry::{LeaderId, LogId, Membership, SnapshotMeta, StoredMembership, Vote};
use super::error::StorageError;
use super::folder::Folder;
use super::identity::{self, Claim, FolderState, Identity, LogState, SNAPSHOT_DIR, WAL_DIR};
use super::log::batch::Early;
use super::log::record::Record;
use super::log::recover::{self, Recovered};
use super::log::worker::{self as wal_worker, Log, OnFatal};
use super::log::writer::{Writer, into_storage_error};
use super::memlog::MemLog;
use super::recovery_report::RecoveryReport;
use super::reserve::Reserve;
use super::run_mark::RunMark;
use super::snapshot::{SnapshotFile, SnapshotStore};

/// File with the lock of the running process.
const LOCK: &str = "LOCK";
/// Default size of a log segment, in bytes. Creating or removing a segment makes the next flush wait for the
/// file system's journal and for the other pending writes: smaller segments cost more than they save.
pub const SEGMENT_BYTES: u64 = 64 << 20;

pub struct Storage;

/// Time at which the log acknowledges entries whose effects a restart of the cluster removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// After the flush, as all others.
    #[default]
    Flushed,
    /// After the write; the flush follows within this time.
    Written { flush_within: Duration },
}

pub struct Opened {
    /// The log; keep a clone for closing.
    pub log: Log,
    /// Snapshots of the state machine, and incoming snapshots.
    pub snapshots: SnapshotStore,
    /// The node's durable facts beside the log.
    pub folder: Folder,
    pub reserve: Reserve,
    /// Whether the node has lost acknowledged entries.
    pub mark: Arc<RunMark>,
    pub report: RecoveryReport,
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
        let settings = (SEGMENT_BYTES, Acknowledge::Flushed);
        Self::open_with(dir, identity, on_fatal, metrics, settings).await
    }

    /// Opens the folder like [`Storage::open`], with `segment_bytes` per segment.
    pub async fn open_with(
        dir: &Path,
        identity: Identity,
        on_fatal: OnFatal,
        metrics: Arc<Metrics>,
        (segment_bytes, acknowledge): (u64, Acknowledge),
    ) -> Result<Opened, StorageError> {
        let path = dir.to_owned();
        let of_writer = metrics.clone();
        let work = move || read(path, identity, of_writer, (segment_bytes, acknowledge));
        let Ready { writer, lock, log, snapshots, folder, reserve, mark, report } =
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
        let early = match acknowledge {
            Acknowledge::Written { flush_within } => Some(Early::new(flush_within, mark.clone())),
            Acknowledge::Flushed => None,
        };
        let unflushed = early.as_ref().map(|early| early.unflushed.clone()).unwrap_or_default();
        let worker = wal_worker::start(writer, lock, reserve.clone(), metrics, on_fatal, early);
        Ok(Opened { log: Log::new(log, worker, unflushed), snapshots, folder, reserve, mark, report })
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
    let mut report = RecoveryReport::of(&found);
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
    mark: Arc<RunMark>,
    report: RecoveryReport,
}

fn read(
    path: PathBuf,
    identity: Identity,
    metrics: Arc<Metrics>,
    (segment_bytes, acknowledge): (u64, Acknowledge),
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
    let mut claim = identity::claim(&dir, &identity)?;
    let mark = RunMark::read(dir.clone(), acknowledge != Acknowledge::Flushed)?;
    let kept_vote = mark.drop_state(&identity, &mut claim, |claim| vote_of_log(&dir, &identity, claim))?;
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
    let mut report = RecoveryReport::of(&found);
    let mut log = found.log;
    if let Some(vote) = kept_vote {
        if let Some(vote) = vote {
            keep_vote(vote, (&mut log, &mut writer), &mut report)?;
        }
        mark.dropped()?;
    }
    mark.begin()?;
    cut_behind_snapshot((&mut log, &mut writer), &snapshots, &mut report)?;
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
    let mark = Arc::new(mark);
    Ok(Ready { writer, lock, log, snapshots, folder, reserve, mark, report })
}

/// Returns the vote of a log that is about to be removed.
fn vote_of_log(dir: &Dir, identity: &Identity, claim: &Claim) -> Result<Option<Vote>, StorageError> {
    let wal = dir.sub(WAL_DIR).map_err(StorageError::io("opening", dir.path()))?;
    Ok(find_log(&wal, identity, claim.log)?.log.checkpoint().vote)
}

/// Writes the vote of a removed log to the new log.
fn keep_vote(
    vote: Vote,
    (log, writer): (&mut MemLog, &mut Writer),
    report: &mut RecoveryReport,
) -> Result<(), StorageError> {
    writer.write(&[Record::Vote(vote)]).map_err(into_storage_error)?;
    log.set_vote(vote);
    report.vote = Some(vote);
    assert_eq!(writer.checkpoint().vote, Some(vote), "no node votes twice in a term");
    Ok(())
}

/// Cuts a log that conflicts with the snapshot: the node was killed between installing the snapshot and
/// cutting its log. An undecodable snapshot gives way to this log instead.
fn cut_behind_snapshot(
    (log, writer): (&mut MemLog, &mut Writer),
    snapshots: &SnapshotStore,
    report: &mut RecoveryReport,
) -> Result<(), StorageError> {
    if let Some(snapshot) = snapshots.current()
        && let Some(covered) = snapshot.meta().last_log_id
        && let Some(end) = conflict(log, covered)
        && snapshot.state().is_ok()
    {
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
    Ok(())
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

/// Log position of the restored state: before the first term.
const BEGINNING: LogId = LogId { leader_id: LeaderId { term: 0, node_id: 0 }, index: 1 };

/// File in each folder of an unfinished restore. A node refuses to start on a marked folder: with only some
/// folders filled, the unfilled voters would form an empty cluster.
const MARK: &str = "restoring";
/// Leftover of an interrupted write of the mark.
const PART_OF_MARK: &str = "restoring.tmp";
const MARK_TEXT: &[u8] =
    b"A restore from a backup has not been finished. Run it again: it replaces this folder.\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// This call filled all folders.
    Filled,
    /// An earlier restore had filled all folders with a state of this cluster; only marks were left to
    /// remove.
    AlreadyFilled(ClusterId),
}

/// Fills the folders of several voters on a single machine. Marks all folders, calls `fill` with the index of
/// each (`fill` uses [`begin_with_state`]), then removes the marks. An interruption at any step leaves
/// folders on which no node starts, or complete folders; the next call finishes the restore. Blocks on the
/// disk.
///
/// # Errors
/// [`StorageError::NotEmpty`] if a folder has content from elsewhere than a restore; all folders are
/// unchanged then.
pub fn begin_all(
    paths: &[&Path],
    fill: impl Fn(usize) -> Result<(), StorageError>,
) -> Result<Begun, StorageError> {
    assert!(!paths.is_empty(), "a restore has folders to make");
    let found = paths.iter().map(|path| inspect(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some(FolderContent::Whole(Some(cluster))) =
        found.iter().find(|found| matches!(found, FolderContent::Whole(_)))
        && found.contains(&FolderContent::Marked(Some(*cluster)))
        && found.iter().all(|it| {
            [FolderContent::Whole(Some(*cluster)), FolderContent::Marked(Some(*cluster))].contains(it)
        })
    {
        let marked = paths.iter().zip(&found).filter(|(_, found)| matches!(found, FolderContent::Marked(_)));
        marked.map(|(path, _)| path).try_for_each(|path| unmark(path))?;
        return Ok(Begun::AlreadyFilled(*cluster));
    }
    if let Some((path, _)) =
        paths.iter().zip(&found).find(|(_, found)| matches!(found, FolderContent::Whole(_)))
    {
        return Err(StorageError::NotEmpty(path.to_path_buf()));
    }
    assert!(
        !found.iter().any(|found| matches!(found, FolderContent::Whole(_))),
        "no content is replaced but a restore's"
    );
    paths.iter().try_for_each(|path| mark(path))?;
    (0..paths.len()).try_for_each(fill)?;
    paths.iter().try_for_each(|path| unmark(path))?;
    Ok(Begun::Filled)
}

/// Content of a folder before a restore.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FolderContent {
    Empty,
    /// Marked, with the cluster of the `identity` file if the folder is filled.
    Marked(Option<ClusterId>),
    /// Content without a mark.
    Whole(Option<ClusterId>),
}

fn inspect(path: &Path) -> Result<FolderContent, StorageError> {
    let dir = Dir::create(path).map_err(StorageError::io("creating", path))?;
    let names = dir.list().map_err(StorageError::io("listing", path))?;
    let cluster = || identity::read(&dir).ok().and_then(|(_, claim)| claim.cluster);
    Ok(match names.iter().any(|name| name == MARK) {
        true => FolderContent::Marked(cluster()),
        false if names.iter().all(|name| name == PART_OF_MARK) => FolderContent::Empty,
        false => FolderContent::Whole(cluster()),
    })
}

fn mark(path: &Path) -> Result<(), StorageError> {
    let dir = Dir::create(path).map_err(StorageError::io("creating", path))?;
    dir.write_atomic(MARK, MARK_TEXT).map_err(StorageError::io("marking", path))
}

fn unmark(path: &Path) -> Result<(), StorageError> {
    let removed = Dir::open(path).and_then(|dir| {
        dir.remove(MARK)?;
        dir.sync()
    });
    removed.map_err(StorageError::io("removing the mark of a restore from", path))
}

fn refuse_marked(dir: &Dir) -> Result<(), StorageError> {
    if dir.exists(MARK) { Err(StorageError::HalfRestored(dir.path().to_owned())) } else { Ok(()) }
}

/// Removes the leftovers of an interrupted restore from a marked folder.
fn clear(dir: &Dir) -> Result<(), StorageError> {
    assert!(dir.exists(MARK), "only a restore's content is removed");
    let removed = dir.list().and_then(|names| {
        for name in names.iter().filter(|name| *name != MARK) {
            if [WAL_DIR, SNAPSHOT_DIR].contains(&name.as_str()) {
                dir.sub(name)?.remove_all()?;
            } else {
                dir.remove(name)?;
            }
        }
        dir.sync()
    });
    removed.map_err(StorageError::io("clearing", dir.path()))
}

/// Makes the data folder of a member whose cluster begins with the state from `body`. Every member of
/// `membership` needs a folder with the same state. Blocks on the disk.
///
/// The file `identity` is written last: a start refuses a folder without an identity. In a folder marked by
/// [`begin_all`] the old content is replaced, and the mark stays.
///
/// # Errors
/// [`StorageError::NotEmpty`] if the folder has content and no mark; the folder is unchanged then.
pub fn begin_with_state(
    path: &Path,
    identity: &Identity,
    cluster: ClusterId,
    membership: Membership,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), StorageError> {
    assert_eq!(membership.configs.len(), 1, "a cluster does not begin in the middle of a change");
    assert!(membership.configs[0].contains(&identity.node.0), "{identity} is made a voter");
    assert!(
        membership.configs[0].iter().all(|voter| membership.nodes.contains_key(voter)),
        "every voter has addresses"
    );
    let dir = Dir::create(path).map_err(StorageError::io("creating", path))?;
    if dir.exists(MARK) {
        clear(&dir)?;
    } else if !dir.list().map_err(StorageError::io("listing", path))?.is_empty() {
        return Err(StorageError::NotEmpty(path.to_owned()));
    }
    let wal = dir.sub(WAL_DIR).map_err(StorageError::io("creating the log's folder in", path))?;
    let snapshots =
        dir.sub(SNAPSHOT_DIR).map_err(StorageError::io("creating the snapshots' folder in", path))?;
    for dir in [&dir, &wal, &snapshots] {
        let private = dir.make_private();
        private.map_err(|source| StorageError::Exposed { path: dir.path().to_owned(), source })?;
    }
    let last_membership = StoredMembership { log_id: Some(BEGINNING), membership };
    let meta = SnapshotMeta { last_log_id: Some(BEGINNING), last_membership };
    let (store, _) = SnapshotStore::open(snapshots, identity.clone(), None)?;
    let written = store.write(meta, body, |written| written.state().map(drop))?;
    assert_eq!(written.meta().last_log_id, Some(BEGINNING), "the snapshot is where the log begins");
    dir.sync().map_err(StorageError::io("flushing", path))?;
    let (incarnation, state) = (identity::new_incarnation(), FolderState::Member);
    let claim = Claim { log: LogState::New, incarnation, state, cluster: Some(cluster), version: None };
    identity::write(&dir, identity, &claim)
}
