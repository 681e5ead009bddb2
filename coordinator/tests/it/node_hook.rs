//! Observer of a node: receives all transitions of the log and the state, in order.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode};
use rowlock_coordinator::{Ballot, Instant, Node, NodeConfig, NodeHook, NodeId, Position, SessionId};
use rowlock_env::time;
use rowlock_frames::raw::RawClient;
use rowlock_proto::Request;
use rowlock_state::Machine;
use rowlock_state::command::{Batch, Command, Proposal};

const SOON: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq)]
enum Told {
    Opened(Option<Ballot>, Option<Position>),
    Voted(Ballot),
    Appended(Position, Option<Vec<u8>>),
    Applied(Position, Option<Vec<u8>>, u64),
    Installed(Option<Position>, u64),
    Purged(Position),
    Leads(u64),
    Expires(SessionId, u64),
}

#[derive(Default)]
struct Diary(Mutex<Vec<Told>>);

impl Diary {
    fn write(&self, told: Told) {
        self.0.lock().unwrap().push(told);
    }

    /// Returns the results of `pick`, in order.
    fn pick<T>(&self, pick: impl FnMut(&Told) -> Option<T>) -> Vec<T> {
        self.0.lock().unwrap().iter().filter_map(pick).collect()
    }

    fn appended(&self) -> Vec<(Position, Option<Vec<u8>>)> {
        self.pick(|told| match told {
            Told::Appended(entry, payload) => Some((*entry, payload.clone())),
            _ => None,
        })
    }

    /// Returns position, payload and the digest after the entry.
    fn applied(&self) -> Vec<(Position, Option<Vec<u8>>, u64)> {
        self.pick(|told| match told {
            Told::Applied(entry, payload, digest) => Some((*entry, payload.clone(), *digest)),
            _ => None,
        })
    }
}

impl NodeHook for Diary {
    fn opened(&self, vote: Option<Ballot>, purged: Option<Position>, _: Option<Position>, remembers: bool) {
        assert!(remembers, "nothing is lost here");
        self.write(Told::Opened(vote, purged));
    }

    fn voted(&self, vote: Ballot) {
        self.write(Told::Voted(vote));
    }

    fn appended(&self, entry: Position, payload: Option<&[u8]>) {
        self.write(Told::Appended(entry, payload.map(<[u8]>::to_vec)));
    }

    fn purged(&self, upto: Position) {
        self.write(Told::Purged(upto));
    }

    fn applied(&self, entry: Position, payload: Option<&[u8]>, machine: &Machine) {
        self.write(Told::Applied(entry, payload.map(<[u8]>::to_vec), machine.digest()));
    }

    fn installed(&self, entry: Option<Position>, machine: &Machine) {
        self.write(Told::Installed(entry, machine.digest()));
    }

    fn leads(&self, term: u64) {
        self.write(Told::Leads(term));
    }

    fn expires(&self, session: SessionId, term: u64, _: Duration) {
        self.write(Told::Expires(session, term));
    }
}

async fn start(folder: &Path) -> (Node, Arc<Diary>) {
    let diary = Arc::new(Diary::default());
    let node = Node::start_hooked(NodeConfig::single(folder), diary.clone()).await.unwrap();
    node.serving(Instant::now() + SOON).await.unwrap();
    (node, diary)
}

async fn client(node: &Node) -> Client {
    let endpoint = node.addresses().client.to_string();
    Client::builder().endpoints(&endpoint).connect_timeout(SOON).connect().await.unwrap()
}

fn creates(payload: &[u8]) -> Vec<String> {
    let path = |proposal: Proposal| match proposal.command.request()? {
        Request::Create(create) | Request::Create2(create) => Some(create.path.clone()),
        _ => None,
    };
    Batch::decode(payload).unwrap().proposals.into_iter().filter_map(path).collect()
}

#[tokio::test]
async fn a_hook_sees_every_entry_taken_and_applied_in_order_and_the_same_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (node, diary) = start(folder.path()).await;
    let client = client(&node).await;
    for name in ["/a", "/b", "/c"] {
        client.create(name, None, CreateMode::Persistent, Acl::open()).await.unwrap();
    }
    client.close().await.unwrap();
    node.shutdown().await;

    assert_eq!(diary.0.lock().unwrap()[0], Told::Opened(None, None));
    let (appended, applied) = (diary.appended(), diary.applied());
    assert!(appended.iter().zip(0..).all(|((entry, _), index)| entry.index == index), "{appended:?}");
    for ((taken, payload), (done, same, _)) in appended.iter().zip(&applied) {
        assert_eq!((taken, payload), (done, same));
    }
    let created: Vec<String> =
        applied.iter().filter_map(|(_, payload, _)| payload.as_deref()).flat_map(creates).collect();
    assert_eq!(created, ["/a", "/b", "/c"]);
    let term = applied.last().unwrap().0.term;
    assert!(diary.pick(|told| (*told == Told::Leads(term)).then_some(())).len() == 1, "it led {term} once");

    let (node, again) = start(folder.path()).await;
    let elected = Ballot { term, candidate: NodeId(1), elected: true };
    assert_eq!(again.0.lock().unwrap()[0], Told::Opened(Some(elected), None));
    assert_eq!(again.appended()[..appended.len()], appended[..]);
    assert_eq!(again.applied()[..applied.len()], applied[..], "the same entries give the same states");
    node.shutdown().await;
}

#[tokio::test]
async fn a_hook_is_told_of_the_snapshot_that_a_node_begins_with() {
    let folder = tempfile::tempdir().unwrap();
    let (node, diary) = start(folder.path()).await;
    let client = client(&node).await;
    client.create("/a", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    client.close().await.unwrap();
    let digest = diary.applied().last().unwrap().2;
    node.take_snapshot().await.unwrap();
    let deadline = Instant::now() + SOON;
    while node.status().borrow().snapshot_index == 0 {
        assert!(Instant::now() < deadline, "no snapshot");
        time::sleep(Duration::from_millis(5)).await;
    }
    node.shutdown().await;

    let (node, again) = start(folder.path()).await;
    let installed = again.pick(|told| match told {
        Told::Installed(Some(entry), digest) => Some((*entry, *digest)),
        _ => None,
    });
    assert_eq!(installed.len(), 1);
    assert_eq!(installed[0].1, digest);
    let first = again.applied()[0].0;
    assert_eq!(first.index, installed[0].0.index + 1, "what the snapshot holds is not applied again");
    node.shutdown().await;
}

#[tokio::test]
async fn a_hook_is_told_whose_time_has_passed_before_the_session_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::single(folder.path());
    config.session.min_timeout_ms = 100;
    let diary = Arc::new(Diary::default());
    let node = Node::start_hooked(config, diary.clone()).await.unwrap();
    node.serving(Instant::now() + SOON).await.unwrap();
    let silent = RawClient::attach(node.addresses().client.to_string(), 100).await;
    let session = silent.session();
    let ended = || {
        let of = |payload: &[u8]| Batch::decode(payload).unwrap().proposals.into_iter();
        let applied = diary.applied();
        let mut proposals = applied.iter().filter_map(|(_, payload, _)| payload.as_deref()).flat_map(of);
        proposals
            .any(|one| matches!(one.command, Command::ExpireSession { session: who, .. } if who == session))
    };
    let deadline = Instant::now() + SOON;
    while !ended() {
        assert!(Instant::now() < deadline, "not expired");
        time::sleep(Duration::from_millis(5)).await;
    }
    assert!(
        !diary.pick(|told| matches!(told, Told::Expires(who, _) if *who == session).then_some(())).is_empty()
    );
    node.shutdown().await;
}
