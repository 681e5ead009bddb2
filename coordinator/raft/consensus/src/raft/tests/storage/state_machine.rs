//! The state machine over the replica: apply, snapshot, installation, restart.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream;
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};
use rowlock_env::{task, time};
use rowlock_metrics::Metrics;
use rowlock_state::Machine;
use rowlock_state::command::{Batch, Command, Proposal};
use rowlock_wal::{SnapshotFile, SnapshotStore, StorageError, verify};

use parking_lot::Mutex;
use rowlock_proto::SessionId;
use rowlock_state::Proof;
use rowlock_state::command::Attachment;

use super::*;
use crate::applied_state::AppliedState;
use crate::entry_times::EntryStages;
use crate::limits::APPLY_SLICE;
use crate::node_hook::Hook;
use crate::raft::rpc::IncomingSnapshot;
use crate::raft::state_machine::{Apply, StateMachine};
use crate::raft::stored;
use crate::raft::testing::{entry, log_id, membership_entry, snapshot_meta};
use crate::raft_types::{Entry, EntryOutcome, EntryPayload, Payload};

#[derive(Default)]
struct Applier {
    batches: AtomicUsize,
    installations: AtomicUsize,
    /// Each batch takes so much of the thread.
    takes: Duration,
    /// Turns that another task of the thread has had, and those that each batch has seen.
    turns: AtomicUsize,
    seen: Mutex<Vec<usize>>,
}

impl Apply for Applier {
    fn apply(&self, machine: &mut Machine, _entry: EntryStages, batch: Batch) -> EntryOutcome {
        for proposal in &batch.proposals {
            machine.apply(batch.time_ms, proposal, &mut ());
        }
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.seen.lock().push(self.turns.load(Ordering::Relaxed));
        let begun = time::now();
        while begun.elapsed() < self.takes {
            std::hint::spin_loop();
        }
        EntryOutcome::Applied
    }

    fn installed(&self, _machine: &Machine) {
        self.installations.fetch_add(1, Ordering::Relaxed);
    }
}

struct Node {
    replica: Arc<AppliedState>,
    applier: Arc<Applier>,
    machine: StateMachine,
    opened: Opened,
    metrics: Arc<Metrics>,
}

async fn node(dir: &Path) -> Node {
    node_with(dir, Applier::default()).await
}

async fn node_with(dir: &Path, applier: Applier) -> Node {
    let opened = open(dir).await;
    let (replica, applier) = (Arc::new(AppliedState::default()), Arc::new(applier));
    let metrics: Arc<Metrics> = Arc::default();
    let machine = StateMachine::open(
        replica.clone(),
        opened.snapshots.clone(),
        applier.clone(),
        metrics.clone(),
        Hook::default(),
    )
    .await;
    Node { replica, applier, machine: machine.expect("opens"), opened, metrics }
}

/// An entry whose batch opens a session: the state changes with every one.
fn batch_entry(index: u64) -> Entry {
    let command = Command::OpenSession { proof: Proof::of(&[index as u8; 16]), timeout_ms: 1000 };
    let proposal = Proposal {
        origin: Default::default(),
        session: SessionId::NONE,
        attachment: Attachment(0),
        identities: Default::default(),
        command,
    };
    let batch = Batch { time_ms: index as i64, proposals: vec![proposal], ..Batch::default() };
    Entry { log_id: log_id(1, index), payload: EntryPayload::Normal(Payload(batch.encode())) }
}

async fn apply(node: &mut Node, entries: Vec<Entry>) -> Result<(), std::io::Error> {
    node.machine.apply(stream::iter(entries.into_iter().map(|entry| Ok((entry, None))))).await
}

fn digest(node: &Node) -> u64 {
    node.replica.state.read().digest()
}

#[tokio::test]
async fn entries_change_the_replica_and_the_marks() {
    let dir = temp();
    let mut node = node(dir.path()).await;
    let empty = digest(&node);
    apply(&mut node, vec![membership_entry(1, 0), batch_entry(1), batch_entry(2)]).await.expect("applies");
    assert_ne!(digest(&node), empty);
    let (last, membership) = node.machine.applied_state().await.expect("reads");
    assert_eq!((last, membership.log_id()), (Some(log_id(1, 2)), &Some(log_id(1, 0))));
    assert_eq!((node.applier.batches.load(Ordering::Relaxed), node.replica.applied_index()), (2, 2));
}

#[tokio::test]
async fn other_tasks_run_between_expensive_entries() {
    let dir = temp();
    let mut node = node_with(dir.path(), Applier { takes: APPLY_SLICE, ..Applier::default() }).await;
    let applier = node.applier.clone();
    let heartbeat = task::spawn("heartbeat", async move {
        loop {
            applier.turns.fetch_add(1, Ordering::Relaxed);
            task::yield_now().await;
        }
    });
    let entries = [membership_entry(1, 0)].into_iter().chain((1..=20).map(batch_entry));
    apply(&mut node, entries.collect()).await.expect("applies");
    heartbeat.abort();
    let seen = node.applier.seen.lock().clone();
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "turns seen by each entry: {seen:?}");
    assert!(node.metrics.apply_longest_seconds.get() >= APPLY_SLICE);
}

#[tokio::test]
async fn an_undecodable_entry_stops_apply_unapplied() {
    let dir = temp();
    let mut node = node(dir.path()).await;
    let entries = vec![batch_entry(0), entry(1, 1, b"\xffnonsense"), batch_entry(2)];
    apply(&mut node, entries).await.expect_err("is refused");
    assert_eq!(node.machine.applied_state().await.expect("reads").0, Some(log_id(1, 0)));
}

#[tokio::test]
async fn a_restarted_node_begins_with_its_snapshot() {
    let dir = temp();
    let mut first = node(dir.path()).await;
    apply(&mut first, vec![membership_entry(1, 0), batch_entry(1), batch_entry(2)]).await.expect("applies");
    let mut builder = first.machine.get_snapshot_builder().await;
    // What is applied after the builder was made is not in its snapshot.
    let (at, marks) = (digest(&first), first.machine.applied_state().await.expect("reads"));
    apply(&mut first, vec![batch_entry(3)]).await.expect("applies");
    let built = builder.build_snapshot().await.expect("builds");
    assert_eq!(built.meta.last_log_id, Some(log_id(1, 2)));
    first.opened.log.close().await;

    let mut second = node(dir.path()).await;
    assert_eq!(digest(&second), at);
    assert_eq!(second.machine.applied_state().await.expect("reads"), marks);
    assert_eq!(second.applier.installations.load(Ordering::Relaxed), 1);
    apply(&mut second, vec![batch_entry(3)]).await.expect("applies");
    assert_eq!(digest(&second), digest(&first));
}

#[tokio::test]
async fn an_installed_snapshot_survives_a_restart() {
    let (here, there) = (temp(), temp());
    let mut leader = node(here.path()).await;
    apply(&mut leader, vec![membership_entry(1, 0), batch_entry(1), batch_entry(2)]).await.expect("applies");
    let sent = leader.machine.get_snapshot_builder().await.build_snapshot().await.expect("builds");

    let mut follower = node(there.path()).await;
    apply(&mut follower, vec![batch_entry(0)]).await.expect("applies");
    let mut incoming = follower.opened.snapshots.begin_receive().expect("begins");
    incoming.write(&sent.snapshot.read_at(0, usize::MAX).expect("reads")).expect("writes");
    let received = incoming.finish().expect("is whole");
    follower.machine.install_snapshot(&sent.meta, received).await.expect("installs");
    assert_eq!(digest(&follower), digest(&leader));
    assert_eq!(follower.replica.applied_index(), 2);
    assert_eq!(
        follower.machine.applied_state().await.unwrap(),
        leader.machine.applied_state().await.unwrap()
    );
    let current = follower.machine.get_current_snapshot().await.expect("reads").expect("is there");
    assert_eq!(current.meta, sent.meta);
    follower.opened.log.close().await;
    assert_eq!(digest(&node(there.path()).await), digest(&leader));
}

#[tokio::test]
async fn a_snapshot_whose_content_is_no_state_replaces_nothing() {
    let (here, there) = (temp(), temp());
    let bad = stateless(&open(here.path()).await.snapshots, 1, 10);
    let mut node = node(there.path()).await;
    apply(&mut node, vec![batch_entry(0)]).await.expect("applies");
    let before = digest(&node);
    node.machine.install_snapshot(&stored::raft_meta(bad.meta()), bad).await.expect_err("is refused");
    assert_eq!(digest(&node), before);
    assert!(node.opened.snapshots.current().is_none());
}

#[tokio::test]
async fn a_snapshot_that_was_announced_as_another_is_refused() {
    let dir = temp();
    let mut node = node(dir.path()).await;
    apply(&mut node, vec![batch_entry(0)]).await.expect("applies");
    let built = node.machine.get_snapshot_builder().await.build_snapshot().await.expect("builds");
    let announced = snapshot_meta(9, 9);
    node.machine.install_snapshot(&announced, built.snapshot).await.expect_err("is refused");
}

#[tokio::test]
async fn a_snapshot_with_another_state_is_discarded() {
    let dir = temp();
    let mut node = node(dir.path()).await;
    apply(&mut node, vec![membership_entry(1, 0), batch_entry(1)]).await.expect("applies");
    let first = node.machine.freeze().write().await.expect("writes");
    let store = &node.opened.snapshots;
    let meta = stored::meta(&snapshot_meta(1, 9));
    let state = node.replica.state.read().freeze();
    let digest = state.machine().digest();
    let mut whole = Vec::new();
    state.encode(&mut whole).expect("encodes");
    let attempts: [(&[u8], u64); 3] =
        [(&whole[..whole.len() - 1], digest), (b"nonsense", digest), (&whole, digest + 1)];
    for (bytes, digest) in attempts {
        let body = |out: &mut dyn std::io::Write| out.write_all(bytes);
        store.write(meta.clone(), body, |written| written.check_state(digest)).expect_err("is refused");
        assert_eq!(store.current().expect("is there").meta(), first.meta());
        assert_eq!(std::fs::read_dir(dir.path().join("snapshots")).expect("lists").count(), 1);
    }
    let body = |out: &mut dyn std::io::Write| out.write_all(&whole);
    store.write(meta.clone(), body, |written| written.check_state(digest)).expect("is the state");
    assert_eq!(store.current().expect("is there").meta(), &meta);
}

#[tokio::test]
async fn a_snapshot_after_the_stop_leaves_the_folder_alone() {
    let dir = temp();
    let mut node = node(dir.path()).await;
    apply(&mut node, vec![membership_entry(1, 0), batch_entry(1)]).await.expect("applies");
    node.machine.freeze().write().await.expect("writes");
    apply(&mut node, vec![batch_entry(2)]).await.expect("applies");
    let late = node.machine.freeze();
    node.opened.snapshots.close();
    let newer = dir.path().join("snapshots/0000000000000009-1-1.snapshot");
    std::fs::write(&newer, b"of the node that came after it").expect("writes");
    let before = names(dir.path());
    late.write().await.expect_err("is refused");
    assert_eq!(names(dir.path()), before);
}

#[tokio::test]
async fn an_undecodable_snapshot_is_refused_before_raft() {
    let (here, there) = (temp(), temp());
    let bad = stateless(&open(here.path()).await.snapshots, 1, 10);
    let store = open(there.path()).await.snapshots;
    let mut incoming = store.begin_receive().expect("begins");
    incoming.write(&bad.read_at(0, usize::MAX).expect("reads")).expect("writes");
    IncomingSnapshot::finish(incoming).expect_err("is refused");
    assert_eq!(std::fs::read_dir(there.path().join("snapshots")).expect("lists").count(), 0);
}

/// A folder with a snapshot at index 1, and a newer one that is whole and holds no state.
async fn folder_with_a_bad_newest(purged: Option<u64>) -> (tempfile::TempDir, u64) {
    let (dir, other) = (temp(), temp());
    let mut first = node(dir.path()).await;
    let entries = || vec![membership_entry(1, 0), batch_entry(1), batch_entry(2), batch_entry(3)];
    let written = entries().into_iter().map(stored::entry).collect();
    first.opened.log.append_durably(written).await.expect("appends");
    apply(&mut first, entries()[..2].to_vec()).await.expect("applies");
    let at = digest(&first);
    first.machine.freeze().write().await.expect("writes");
    if let Some(index) = purged {
        first.opened.log.purge(stored::log_id(log_id(1, index))).await.expect("purges");
        first.opened.log.append_durably(Vec::new()).await.expect("flushes");
    }
    let copy = killed(dir.path());
    stateless(&open(other.path()).await.snapshots, 1, 3);
    let name = "0000000000000003-1-1.snapshot";
    let (from, to) = (other.path().join("snapshots").join(name), copy.path().join("snapshots").join(name));
    std::fs::copy(from, to).expect("copies");
    (copy, at)
}

/// A snapshot that is whole and holds no state.
fn stateless(store: &SnapshotStore, term: u64, index: u64) -> SnapshotFile {
    let body = |out: &mut dyn std::io::Write| out.write_all(&b"no state; ".repeat(60_000));
    store.write(stored::meta(&snapshot_meta(term, index)), body, |_| Ok(())).expect("writes")
}

/// What a process that is killed now leaves behind, in another folder.
fn killed(dir: &Path) -> tempfile::TempDir {
    let copy = temp();
    for sub in ["", "wal", "snapshots"] {
        std::fs::create_dir_all(copy.path().join(sub)).expect("creates");
        for file in std::fs::read_dir(dir.join(sub)).expect("lists").map(|file| file.expect("lists")) {
            if file.file_type().expect("has a type").is_file() {
                std::fs::copy(file.path(), copy.path().join(sub).join(file.file_name())).expect("copies");
            }
        }
    }
    copy
}

fn names(dir: &Path) -> Vec<String> {
    let list = std::fs::read_dir(dir.join("snapshots")).expect("lists");
    let mut names: Vec<String> =
        list.map(|file| file.expect("lists").file_name().into_string().expect("is UTF-8")).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_unreadable_snapshot_yields_to_the_previous_and_the_log() {
    for purged in [None, Some(1)] {
        let (dir, at) = folder_with_a_bad_newest(purged).await;
        let report = verify(dir.path()).expect("a node can start").report;
        assert_eq!(report.snapshot, Some(stored::log_id(log_id(1, 1))));
        assert_eq!(report.damaged_snapshots, ["0000000000000003-1-1.snapshot"]);
        let node = node(dir.path()).await;
        assert_eq!((digest(&node), node.replica.applied_index()), (at, 1));
        assert_eq!(names(dir.path()), ["0000000000000001-1-1.snapshot", "0000000000000003-1-1.damaged"]);
    }
    let (dir, _) = folder_with_a_bad_newest(None).await;
    std::fs::remove_file(dir.path().join("snapshots/0000000000000001-1-1.snapshot")).expect("removes");
    let node = node(dir.path()).await;
    assert_eq!((digest(&node), node.replica.applied_index()), (Machine::new().digest(), 0));
    assert_eq!(names(dir.path()), ["0000000000000003-1-1.damaged"]);
}

#[tokio::test]
async fn an_irreplaceable_unreadable_snapshot_is_refused() {
    let (dir, _) = folder_with_a_bad_newest(Some(2)).await;
    let before = names(dir.path());
    assert!(matches!(verify(dir.path()), Err(StorageError::NoSnapshot { .. })));
    let opened = open(dir.path()).await;
    let applier = Arc::new(Applier::default());
    let replica = Arc::new(AppliedState::default());
    let refused =
        StateMachine::open(replica, opened.snapshots, applier, Arc::default(), Hook::default()).await;
    let text = refused.err().expect("is refused").to_string();
    assert!(text.contains("no usable snapshot") && text.contains("Keep this folder"), "{text}");
    assert_eq!(names(dir.path()), before, "nothing was changed");
}
