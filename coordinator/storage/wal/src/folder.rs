//! Durable facts about a node beside the log: its incarnation, its state in the cluster, and the recorded
//! incarnations of other nodes.
//!
//! The layer of peers records a node's incarnation before reading its messages; `bootstrap/` decides the
//! state.
//!
//! Invariant: an incarnation is on disk before any message of its node counts, and stays: a node without its
//! data returns under another incarnation and is recognized. Only [`Folder::replace_known`] replaces a
//! recorded incarnation, for a node outside the voters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::disk::Dir;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_env::worker;
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::ClusterVersion;

use super::error::{StorageError, is_for_lack_of_room};
use super::identity::{self, Claim, FolderState, Identity, LogState};
use crate::limits::KNOWN_NODES_MAX;

const FILE: &str = "acquaintances";
const FIRST_LINE: &str = "rowlock acquaintances 1";
/// Pause between retries of a write without disk space.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum NotRecorded {
    /// The recorded incarnation of the node differs.
    #[error("the node uses another data folder than before")]
    OtherFolder,
    #[error("too many nodes are known")]
    TooMany,
    #[error(transparent)]
    Disk(#[from] StorageError),
}

/// An open folder. Clones share the state.
#[derive(Clone, Debug)]
pub struct Folder {
    inner: Arc<FolderShared>,
}

#[derive(Debug)]
struct FolderShared {
    /// `None` in tests without a disk.
    place: Option<(Dir, Identity)>,
    incarnation: Incarnation,
    state: Mutex<FolderState>,
    cluster: Mutex<Option<ClusterId>>,
    version: Mutex<Option<ClusterVersion>>,
    known: Mutex<BTreeMap<NodeId, Incarnation>>,
    /// Nodes under an unrecorded incarnation, with the time of the latest attempt.
    strangers: Mutex<BTreeMap<NodeId, (Incarnation, Instant)>>,
    /// Held during a write of a file.
    writing: Mutex<()>,
}

impl Folder {
    /// Reads the recorded incarnations. Blocks.
    pub(super) fn open(dir: Dir, identity: Identity, claim: Claim) -> Result<Folder, StorageError> {
        let known = read(&dir)?;
        let inner = FolderShared {
            place: Some((dir, identity)),
            incarnation: claim.incarnation,
            state: Mutex::new(claim.state),
            cluster: Mutex::new(claim.cluster),
            version: Mutex::new(claim.version),
            known: Mutex::new(known),
            strangers: Mutex::default(),
            writing: Mutex::new(()),
        };
        Ok(Folder { inner: Arc::new(inner) })
    }

    pub fn without_disk(node: NodeId) -> Folder {
        let inner = FolderShared {
            place: None,
            incarnation: Incarnation(u128::from(node.0)),
            state: Mutex::new(FolderState::Member),
            cluster: Mutex::default(),
            version: Mutex::default(),
            known: Mutex::default(),
            strangers: Mutex::default(),
            writing: Mutex::new(()),
        };
        Folder { inner: Arc::new(inner) }
    }

    pub fn incarnation(&self) -> Incarnation {
        self.inner.incarnation
    }

    pub fn state(&self) -> FolderState {
        self.inner.state()
    }

    /// Returns the cluster of the folder, or `None` before the first contact.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.inner.cluster()
    }

    /// Records the cluster durably on the first call. Waits while the disk is full.
    ///
    /// # Errors
    /// [`StorageError::OtherCluster`] if the folder belongs to another cluster.
    pub async fn record_cluster(&self, id: ClusterId) -> Result<(), StorageError> {
        if self.cluster() == Some(id) {
            return Ok(());
        }
        self.write_when_there_is_room("cluster-id", move |inner| inner.record_cluster(id)).await
    }

    /// Returns the recorded cluster version; `None` means the first version.
    pub fn version(&self) -> Option<ClusterVersion> {
        self.inner.version.lock().clone()
    }

    /// Records the cluster's new version durably: an older release refuses to start on this folder. Ignores a
    /// lower version. Waits while the disk is full.
    pub async fn record_version(&self, version: ClusterVersion) -> Result<(), StorageError> {
        let write = move |inner: &FolderShared| inner.record_version(version.clone());
        self.write_when_there_is_room("cluster-version", write).await
    }

    /// Returns the recorded incarnations of other nodes.
    pub fn known(&self) -> Vec<(NodeId, Incarnation)> {
        self.inner.known.lock().iter().map(|(node, incarnation)| (*node, *incarnation)).collect()
    }

    /// Raises the node's state durably. Ignores a lower state. Waits while the disk is full.
    pub async fn rise_to(&self, state: FolderState) -> Result<(), StorageError> {
        self.write_when_there_is_room("folder-state", move |inner| inner.rise_to(state)).await
    }

    /// Retries `write` while the disk is full: like the log, a running node waits for space. Cancel safe: a
    /// canceled write may be missing on disk.
    async fn write_when_there_is_room(
        &self,
        name: &'static str,
        write: impl Fn(&FolderShared) -> Result<(), StorageError> + Clone + Send + 'static,
    ) -> Result<(), StorageError> {
        let mut is_logged = false;
        loop {
            let (inner, write) = (self.inner.clone(), write.clone());
            match worker::run_blocking(name, move || write(&inner)).await {
                Err(StorageError::Io { action, path, source }) if is_for_lack_of_room(source.kind()) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        let path = path.display();
                        tracing::error!(
                            %path,
                            error = %source,
                            "the disk is full: {action} waits for space; free space on this file system"
                        );
                    }
                    time::sleep(NO_ROOM_PAUSE).await;
                }
                written => return written,
            }
        }
    }

    /// Records a node's incarnation durably on the first call.
    pub async fn record(&self, node: NodeId, incarnation: Incarnation) -> Result<(), NotRecorded> {
        if let Some(known) = self.inner.knows(node, incarnation) {
            return known;
        }
        let inner = self.inner.clone();
        worker::run_blocking("known-incarnation", move || inner.record(node, incarnation)).await
    }

    /// Returns nodes seen within the last `within` under another incarnation than the recorded incarnation.
    pub fn strangers(&self, within: Duration) -> Vec<(NodeId, Incarnation)> {
        let strangers = self.inner.strangers.lock();
        let recent = strangers.iter().filter(|(_, (_, at))| at.elapsed() <= within);
        recent.map(|(node, (incarnation, _))| (*node, *incarnation)).collect()
    }

    /// Records a node's new incarnation durably, over any former incarnation.
    ///
    /// The caller guarantees a committed newest membership without this node among the voters: the node's
    /// lost votes no longer count.
    pub async fn replace_known(&self, node: NodeId, incarnation: Incarnation) -> Result<(), NotRecorded> {
        let inner = self.inner.clone();
        worker::run_blocking("replace-known", move || inner.replace_known(node, incarnation)).await
    }
}

impl FolderShared {
    fn rise_to(&self, state: FolderState) -> Result<(), StorageError> {
        let _writing = self.writing.lock();
        if decides!("folder-state-is-reached", *self.state.lock() >= state) {
            return Ok(());
        }
        let claim = self.claim(state, self.cluster(), self.version());
        self.write_identity(&claim)?;
        let before = std::mem::replace(&mut *self.state.lock(), state);
        assert!(before < state, "a folder's state only rises");
        Ok(())
    }

    fn record_cluster(&self, id: ClusterId) -> Result<(), StorageError> {
        let _writing = self.writing.lock();
        let known = *self.cluster.lock();
        if let Some(known) = known {
            let path = self.place.as_ref().map(|(dir, _)| dir.path().to_owned()).unwrap_or_default();
            let other = StorageError::OtherCluster { path, known, found: id };
            return if decides!("cluster-id-fits", known == id) { Ok(()) } else { Err(other) };
        }
        let claim = self.claim(self.state(), Some(id), self.version());
        self.write_identity(&claim)?;
        let before = self.cluster.lock().replace(id);
        assert!(before.is_none(), "the cluster of a folder is recorded once");
        Ok(())
    }

    fn version(&self) -> Option<ClusterVersion> {
        self.version.lock().clone()
    }

    fn state(&self) -> FolderState {
        *self.state.lock()
    }

    fn cluster(&self) -> Option<ClusterId> {
        *self.cluster.lock()
    }

    /// Writes the `identity` file.
    ///
    /// Invariant: of the locks, only `writing` is held during the write. The node's tasks take the other
    /// locks, and a slow disk would block these tasks.
    fn write_identity(&self, claim: &Claim) -> Result<(), StorageError> {
        let Some((dir, identity)) = &self.place else { return Ok(()) };
        identity::write(dir, identity, claim)
    }

    fn record_version(&self, version: ClusterVersion) -> Result<(), StorageError> {
        let _writing = self.writing.lock();
        if self.version().is_some_and(|known| decides!("version-is-recorded", known.number >= version.number))
        {
            return Ok(());
        }
        let claim = self.claim(self.state(), self.cluster(), Some(version.clone()));
        self.write_identity(&claim)?;
        let before = self.version.lock().replace(version.clone());
        assert!(before.is_none_or(|before| before.number < version.number), "a version only rises");
        Ok(())
    }

    fn claim(
        &self,
        state: FolderState,
        cluster: Option<ClusterId>,
        version: Option<ClusterVersion>,
    ) -> Claim {
        Claim { log: LogState::Begun, incarnation: self.incarnation, state, cluster, version }
    }

    fn knows(&self, node: NodeId, incarnation: Incarnation) -> Option<Result<(), NotRecorded>> {
        let known = *self.known.lock().get(&node)?;
        let is_known =
            decides!("data-folder-is-known", known == incarnation) || mutant::is(Mutant::AnyFolderWillDo);
        if !is_known {
            self.strangers.lock().insert(node, (incarnation, time::now()));
        }
        Some(if is_known { Ok(()) } else { Err(NotRecorded::OtherFolder) })
    }

    fn record(&self, node: NodeId, incarnation: Incarnation) -> Result<(), NotRecorded> {
        let _writing = self.writing.lock();
        if let Some(known) = self.knows(node, incarnation) {
            return known;
        }
        self.write(node, incarnation)
    }

    fn replace_known(&self, node: NodeId, incarnation: Incarnation) -> Result<(), NotRecorded> {
        let _writing = self.writing.lock();
        self.write(node, incarnation)?;
        self.strangers.lock().remove(&node);
        assert!(self.known.lock().get(&node) == Some(&incarnation), "it is known by the new one only");
        Ok(())
    }

    fn write(&self, node: NodeId, incarnation: Incarnation) -> Result<(), NotRecorded> {
        let mut known = self.known.lock().clone();
        if known.len() >= KNOWN_NODES_MAX && !known.contains_key(&node) {
            return Err(NotRecorded::TooMany);
        }
        known.insert(node, incarnation);
        if let Some((dir, _)) = &self.place {
            let path = dir.path().join(FILE);
            dir.write_atomic(FILE, text(&known).as_bytes()).map_err(StorageError::io("writing", &path))?;
        }
        assert!(known.len() <= KNOWN_NODES_MAX, "no more nodes are known than have room");
        *self.known.lock() = known;
        Ok(())
    }
}

fn text(known: &BTreeMap<NodeId, Incarnation>) -> String {
    let mut content = format!("{FIRST_LINE}\n");
    for (node, incarnation) in known {
        content.push_str(&format!("node {node} {incarnation}\n"));
    }
    let crc = crc32fast::hash(content.as_bytes());
    let text = format!("{content}crc {crc:08x}\n");
    debug_assert_eq!(parse(text.as_bytes()).as_ref(), Some(known), "it is read back as it was written");
    text
}

fn read(dir: &Dir) -> Result<BTreeMap<NodeId, Incarnation>, StorageError> {
    if !dir.exists(FILE) {
        return Ok(BTreeMap::new());
    }
    let path = dir.path().join(FILE);
    let bytes = dir.read(FILE).map_err(StorageError::io("reading", &path))?;
    parse(&bytes).ok_or(StorageError::KnownNodes { path })
}

fn parse(bytes: &[u8]) -> Option<BTreeMap<NodeId, Incarnation>> {
    let (content, crc) = std::str::from_utf8(bytes).ok()?.rsplit_once("crc ")?;
    if crc32fast::hash(content.as_bytes()) != u32::from_str_radix(crc.trim_end(), 16).ok()? {
        return None;
    }
    let mut lines = content.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    lines
        .map(|line| {
            let (node, incarnation) = line.strip_prefix("node ")?.split_once(' ')?;
            Some((NodeId(node.parse().ok()?), Incarnation::parse(incarnation)?))
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> Result<Folder, StorageError> {
        let dir = Dir::open(path).expect("opens");
        let identity = Identity { cluster: "test".to_owned(), node: NodeId(1) };
        let (incarnation, state) = (Incarnation(7), FolderState::Unknown);
        Folder::open(
            dir,
            identity,
            Claim { log: LogState::New, incarnation, state, cluster: None, version: None },
        )
    }

    /// Simulates a stalled disk by a pipe without a reader. Before the fix, the node's runtime stalled for
    /// the whole write of `rise_to`.
    #[test]
    fn a_folders_state_is_readable_while_its_disk_stalls() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let folder = open(temp.path()).expect("is new");
        let pipe = temp.path().join("identity.tmp");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
        assert!(made.success());
        let writes: [fn(&FolderShared); 3] = [
            |inner| assert!(inner.rise_to(FolderState::Member).is_err(), "a pipe is no file"),
            |inner| assert!(inner.record_cluster(ClusterId(7)).is_err(), "a pipe is no file"),
            |inner| {
                let version = ClusterVersion { number: 9, release: "9".to_owned() };
                assert!(inner.record_version(version).is_err(), "a pipe is no file");
            },
        ];
        for write in writes {
            let inner = folder.inner.clone();
            let writing = std::thread::Builder::new().spawn(move || write(&inner)).expect("starts");
            while !folder.inner.writing.is_locked() {
                std::thread::yield_now();
            }
            let (sender, read) = std::sync::mpsc::channel();
            let reader = folder.clone();
            let asked = std::thread::Builder::new().spawn(move || {
                let _ = sender.send((reader.state(), reader.cluster(), reader.version(), reader.known()));
            });
            let found = read.recv_timeout(Duration::from_secs(10));
            // Opens the reading end, and so unblocks the writer.
            let end = std::process::Command::new("timeout").args(["5", "cat"]).arg(&pipe).status();
            end.expect("cat is there");
            writing.join().expect("it ends");
            asked.expect("starts").join().expect("it ends");
            assert!(found.is_ok(), "a reader waited for the disk");
        }
    }

    #[tokio::test]
    async fn a_node_keeps_its_first_recorded_incarnation() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let folder = open(temp.path()).expect("is new");
        folder.record(NodeId(2), Incarnation(20)).await.expect("is new");
        folder.record(NodeId(2), Incarnation(20)).await.expect("is known");
        let again = open(temp.path()).expect("is read");
        assert_eq!(again.known(), [(NodeId(2), Incarnation(20))]);
        assert!(matches!(again.record(NodeId(2), Incarnation(21)).await, Err(NotRecorded::OtherFolder)));
    }

    #[tokio::test]
    async fn another_folder_is_a_stranger_until_its_record_is_replaced() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let folder = open(temp.path()).expect("is new");
        let minute = Duration::from_secs(60);
        folder.record(NodeId(2), Incarnation(20)).await.expect("is new");
        assert_eq!(folder.strangers(minute), []);
        assert!(folder.record(NodeId(2), Incarnation(21)).await.is_err());
        assert_eq!(folder.strangers(minute), [(NodeId(2), Incarnation(21))]);
        folder.replace_known(NodeId(2), Incarnation(21)).await.expect("writes");
        assert_eq!(folder.strangers(minute), []);
        folder.record(NodeId(2), Incarnation(21)).await.expect("is known");
        let again = open(temp.path()).expect("is read");
        assert_eq!(again.known(), [(NodeId(2), Incarnation(21))]);
        assert!(matches!(again.record(NodeId(2), Incarnation(20)).await, Err(NotRecorded::OtherFolder)));
    }

    #[tokio::test]
    async fn the_state_of_a_node_is_never_lowered() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let folder = open(temp.path()).expect("is new");
        folder.rise_to(FolderState::Member).await.expect("writes");
        folder.rise_to(FolderState::Admitted).await.expect("does nothing");
        assert_eq!(folder.state(), FolderState::Member);
        let (_, claim) = identity::read(&Dir::open(temp.path()).expect("opens")).expect("is there");
        assert_eq!((claim.incarnation, claim.state), (Incarnation(7), FolderState::Member));
    }

    #[tokio::test]
    async fn a_record_waits_on_a_full_disk_and_is_unset_until_written() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let folder = open(temp.path()).expect("is new");
        // Fails every write for lack of space.
        let next = temp.path().join("identity.tmp");
        std::os::unix::fs::symlink("/dev/full", &next).expect("links");
        let notes = async {
            folder.rise_to(FolderState::Member).await?;
            folder.record_cluster(ClusterId(5)).await
        };
        let room = async {
            time::sleep(2 * NO_ROOM_PAUSE).await;
            assert_eq!((folder.state(), folder.cluster()), (FolderState::Unknown, None));
            #[expect(clippy::disallowed_methods, reason = "the test makes room behind env's back")]
            std::fs::remove_file(&next).expect("removes");
        };
        let (recorded, ()) = tokio::join!(notes, room);
        recorded.expect("is written");
        let (_, claim) = identity::read(&Dir::open(temp.path()).expect("opens")).expect("is there");
        assert_eq!((claim.state, claim.cluster), (FolderState::Member, Some(ClusterId(5))));
    }

    #[tokio::test]
    async fn a_folder_is_of_one_cluster_for_ever() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let folder = open(temp.path()).expect("is new");
        folder.record_cluster(ClusterId(5)).await.expect("is the first one");
        folder.record_cluster(ClusterId(5)).await.expect("is known");
        folder.rise_to(FolderState::Member).await.expect("writes");
        let (_, claim) = identity::read(&Dir::open(temp.path()).expect("opens")).expect("is there");
        assert_eq!((claim.cluster, folder.cluster()), (Some(ClusterId(5)), Some(ClusterId(5))));
        assert!(matches!(folder.record_cluster(ClusterId(6)).await, Err(StorageError::OtherCluster { .. })));
    }

    pub(crate) const GOLDEN: &str = "rowlock acquaintances 1\nnode 2 00000000000000000000000000000abc\n\
                                     node 3 00000000000000000000000000000001\ncrc 971022f8\n";

    #[test]
    fn the_file_reads_like_this_and_a_damaged_one_is_refused() {
        let known = BTreeMap::from([(NodeId(2), Incarnation(0xabc)), (NodeId(3), Incarnation(1))]);
        assert_eq!(text(&known), GOLDEN);
        assert_eq!(parse(GOLDEN.as_bytes()), Some(known));
        let temp = tempfile::tempdir().expect("a temporary folder");
        #[expect(clippy::disallowed_methods, reason = "the test damages a file behind env's back")]
        std::fs::write(temp.path().join(FILE), GOLDEN.replace("node 2", "node 4")).expect("writes");
        assert!(matches!(open(temp.path()), Err(StorageError::KnownNodes { .. })));
    }
}
