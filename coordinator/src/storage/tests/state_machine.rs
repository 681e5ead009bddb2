//! The state machine over the replica: apply, snapshot, installation, restart.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};
use rowlock_state::Machine;
use rowlock_state::command::{Batch, Command, Proposal};

use super::*;
use crate::observer::Observed;
use crate::raft::state_machine::{Apply, StateMachine};
use crate::raft::types::{EntryPayload, Fate, Payload};
use crate::replica::Replica;
use crate::storage::testing::{log_id, membership_entry};
use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;

#[derive(Default)]
struct Applier {
    batches: AtomicUsize,
    installations: AtomicUsize,
}

impl Apply for Applier {
    fn apply(&self, machine: &mut Machine, _index: u64, batch: Batch) -> Fate {
        for proposal in &batch.proposals {
            machine.apply(batch.time_ms, proposal, &mut ());
        }
        self.batches.fetch_add(1, Ordering::Relaxed);
        Fate::Applied
    }

    fn installed(&self, _machine: &Machine) {
        self.installations.fetch_add(1, Ordering::Relaxed);
    }
}

struct Node {
    replica: Arc<Replica>,
    applier: Arc<Applier>,
    machine: StateMachine,
    opened: Opened,
}

async fn node(dir: &Path) -> Node {
    let opened = open(dir).await;
    let (replica, applier) = (Arc::new(Replica::default()), Arc::new(Applier::default()));
    let machine = StateMachine::open(
        replica.clone(),
        opened.snapshots.clone(),
        applier.clone(),
        Arc::default(),
        Observed::default(),
    )
    .await;
    Node { replica, applier, machine: machine.expect("opens"), opened }
}

/// An entry whose batch opens a session: the state changes with every one.
fn batch_entry(index: u64) -> Entry {
    let command = Command::CreateSession { password: [index as u8; 16], timeout_ms: 1000 };
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
async fn an_entry_that_cannot_be_decoded_stops_apply_before_it_counts_as_applied() {
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
async fn an_installed_snapshot_replaces_the_state_and_survives_a_restart() {
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
    let bad = super::snapshots::write(&open(here.path()).await.snapshots, 1, 10);
    let mut node = node(there.path()).await;
    apply(&mut node, vec![batch_entry(0)]).await.expect("applies");
    let before = digest(&node);
    node.machine.install_snapshot(&bad.meta().clone(), bad).await.expect_err("is refused");
    assert_eq!(digest(&node), before);
    assert!(node.opened.snapshots.current().is_none());
}

#[tokio::test]
async fn a_snapshot_that_was_announced_as_another_is_refused() {
    let dir = temp();
    let mut node = node(dir.path()).await;
    apply(&mut node, vec![batch_entry(0)]).await.expect("applies");
    let built = node.machine.get_snapshot_builder().await.build_snapshot().await.expect("builds");
    let announced = crate::storage::testing::snapshot_meta(9, 9);
    node.machine.install_snapshot(&announced, built.snapshot).await.expect_err("is refused");
}
