//! Finds data folders and backups, and makes one log of the committed entries of all nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rowlock_backup::file;
use rowlock_env::disk::Dir;
use rowlock_proto::{NodeId, Zxid};
use rowlock_state::Machine;
use rowlock_wal::SnapshotFile;

use super::folder::{Committed, NodeLog, position};
use super::folder::{Unreadable, unreadable};

/// Folders in a data folder.
const WAL: &str = "wal";
const BACKUPS: &str = "backups";
/// First bytes of a compressed archive, such as a diagnostics bundle.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// State that a backup holds.
#[derive(Debug)]
pub struct Backup {
    pub path: PathBuf,
    pub zxid: Zxid,
    pub digest: u64,
}

/// State before the first replayed entry.
#[derive(Clone, Debug)]
pub enum Start {
    /// The empty state before the first entry of the log.
    Beginning,
    Snapshot {
        node: NodeId,
        file: SnapshotFile,
    },
}

/// Everything that is known about a cluster.
#[derive(Debug)]
pub struct Evidence {
    /// Nodes, in the order of their numbers.
    pub nodes: Vec<NodeLog>,
    pub backups: Vec<Backup>,
    pub start: Start,
    /// Index of the state at the start.
    pub start_index: u64,
    /// Committed entries after the start, without a gap. If nodes differ, the entry of the lowest node.
    pub entries: Vec<(NodeId, Committed)>,
}

impl Evidence {
    /// Reads data folders, folders with data folders, and backups.
    ///
    /// # Errors
    /// A path is none of these, is damaged, or belongs to another cluster or build; or no state and entries
    /// fit together.
    pub fn read(paths: &[PathBuf]) -> Result<Evidence, Unreadable> {
        let (mut folders, mut files) = (Vec::new(), Vec::new());
        for path in paths {
            find(path, &mut folders, &mut files)?;
        }
        let mut nodes: Vec<NodeLog> = folders.iter().map(|it| NodeLog::read(it)).collect::<Result<_, _>>()?;
        nodes.sort_by_key(|log| log.node);
        let mut backups = Vec::new();
        for path in files {
            let backup = read_backup(&path, &nodes)?;
            backups.push(backup.ok_or_else(|| unreadable(&path, "it is a backup of another cluster"))?);
        }
        check_owners(&nodes)?;
        for log in &nodes {
            for path in backups_in(&log.folder)? {
                // The folder may have backups from before a restore.
                backups.extend(read_backup(&path, &nodes)?);
            }
        }
        let entries = merged(&nodes);
        let (start, start_index) = start(&nodes, &entries)?;
        let entries = entries.into_iter().filter(|(index, _)| is_after(&start, start_index, *index));
        let entries = entries.map(|(_, entry)| entry).collect();
        Ok(Evidence { nodes, backups, start, start_index, entries })
    }

    /// Returns the state before the first entry.
    ///
    /// # Errors
    /// The snapshot cannot be decoded.
    pub(super) fn state(&self) -> Result<Machine, Unreadable> {
        match &self.start {
            Start::Beginning => Ok(Machine::new()),
            Start::Snapshot { file, .. } => file.state().map_err(|error| Unreadable(error.to_string())),
        }
    }
}

/// Sorts a path into data folders and files.
fn find(path: &Path, folders: &mut Vec<PathBuf>, files: &mut Vec<PathBuf>) -> Result<(), Unreadable> {
    let dir = match Dir::open(path) {
        Ok(dir) => dir,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(unreadable(path, error)),
        Err(_) => {
            files.push(path.to_owned());
            return Ok(());
        }
    };
    if dir.exists(WAL) {
        folders.push(path.to_owned());
        return Ok(());
    }
    let names = dir.list().map_err(|error| unreadable(path, error))?;
    let inner: Vec<PathBuf> =
        names.iter().map(|name| path.join(name)).filter(|it| it.join(WAL).is_dir()).collect();
    if inner.is_empty() {
        return Err(unreadable(
            path,
            "there is no data folder; name the data folder of a node, in which `wal` is",
        ));
    }
    folders.extend(inner);
    Ok(())
}

fn check_owners(nodes: &[NodeLog]) -> Result<(), Unreadable> {
    let Some(first) = nodes.first() else {
        return Err(Unreadable("nothing to judge: name the data folder of a node at least".to_owned()));
    };
    for log in nodes {
        let differs = log.cluster_id.zip(first.cluster_id).is_some_and(|(one, other)| one != other);
        if log.cluster != first.cluster || differs {
            let why = format!("it is of another cluster than {}", first.folder.display());
            return Err(unreadable(&log.folder, why));
        }
    }
    match nodes.windows(2).find(|two| two[0].node == two[1].node) {
        Some([one, other]) => {
            let why = format!("it is of node {}, as {}; name one of them", one.node, one.folder.display());
            Err(unreadable(&other.folder, why))
        }
        _ => Ok(()),
    }
}

/// Returns the backups that a node has made.
fn backups_in(folder: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    let path = folder.join(BACKUPS);
    let Ok(dir) = Dir::open(&path) else { return Ok(Vec::new()) };
    let names = dir.list().map_err(|error| unreadable(&path, error))?;
    Ok(names.into_iter().filter(|name| name.ends_with(".backup")).map(|name| path.join(name)).collect())
}

/// Reads a backup. Returns `None` for a backup of another cluster.
fn read_backup(path: &Path, nodes: &[NodeLog]) -> Result<Option<Backup>, Unreadable> {
    let open = || {
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Dir::open(folder)?.open_to_read(path.file_name().and_then(|it| it.to_str()).unwrap_or_default())
    };
    let mut first = [0; GZIP.len()];
    let input = open().map_err(|error| unreadable(path, error))?;
    if input.read_exact_at(&mut first, 0).is_ok() && first == GZIP {
        let why = "an archive has no log entries, nor has a diagnostics bundle; name data folders or copies of them";
        return Err(unreadable(path, why));
    }
    let input = std::io::BufReader::new(Bytes { file: input, at: 0 });
    let read = file::read(input).map_err(|error| unreadable(path, format!("it {error}")));
    let (header, machine) = read?;
    let cluster = nodes.iter().find_map(|log| log.cluster_id);
    let is_ours = header.id().zip(cluster).is_none_or(|(id, cluster)| id == cluster);
    let (path, zxid, digest) = (path.to_owned(), machine.last_zxid(), machine.digest());
    Ok(is_ours.then_some(Backup { path, zxid, digest }))
}

/// Reader of a file from its beginning.
struct Bytes {
    file: rowlock_env::disk::File,
    at: u64,
}

impl std::io::Read for Bytes {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Merges the committed entries of all nodes.
fn merged(nodes: &[NodeLog]) -> BTreeMap<u64, (NodeId, Committed)> {
    let mut entries = BTreeMap::new();
    for log in nodes {
        for (index, entry) in &log.committed {
            entries.entry(*index).or_insert_with(|| (log.node, entry.clone()));
        }
    }
    entries
}

fn is_after(start: &Start, start_index: u64, index: u64) -> bool {
    index > start_index || matches!(start, Start::Beginning)
}

/// Returns the oldest state from which entries without a gap lead to the last entry, and its index.
fn start(
    nodes: &[NodeLog],
    entries: &BTreeMap<u64, (NodeId, Committed)>,
) -> Result<(Start, u64), Unreadable> {
    let mut first = entries.last_key_value().map_or(0, |(last, _)| *last);
    while first > 0 && entries.contains_key(&(first - 1)) {
        first -= 1;
    }
    if first == 0 && entries.contains_key(&0) {
        return Ok((Start::Beginning, 0));
    }
    let snapshots = nodes.iter().flat_map(|log| log.snapshots.iter().map(|file| (log.node, file)));
    let known = snapshots.filter_map(|(node, file)| Some((file.meta().last_log_id?, node, file)));
    let usable = known.filter(|(id, ..)| id.index + 1 >= first);
    // A snapshot may be of an entry that no log has any more.
    let oldest = usable.min_by_key(|(id, node, _)| (id.index, *node));
    match oldest {
        Some((id, node, file)) => {
            let start = Start::Snapshot { node, file: file.clone() };
            Ok((start, position(id).index.0))
        }
        None if entries.is_empty() => Ok((Start::Beginning, 0)),
        None => Err(Unreadable(format!(
            "cannot judge: the committed entries begin at index {first}, and no snapshot reaches so far; name \
             the folders of more nodes"
        ))),
    }
}
