//! A state machine that remembers what it was given, and nodes made of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use openraft::errors::ForwardReason;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use openraft::{Config, OptionalSend, Raft};
use parking_lot::Mutex;
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_metrics::Metrics;
use rowlock_proto::NodeId;
use rowlock_state::codec;
use rowlock_wal::Storage;
use rowlock_wal::entry::Member;
use tempfile::TempDir;

use super::relay::{Cuts, relay};
use crate::config::RaftConfig;
use crate::peer::tests::support::{Service, identity};
use crate::peer::{Lane, PeerPool, PeerServer, RaftConnection, RaftService};
use crate::raft::acks::Acks;
use crate::raft::log_store::LogStore;
use crate::raft::network::{Network, SnapshotSource};
use crate::raft::rpc::{IncomingSnapshot, RaftDispatch, SnapshotSink};
use crate::raft::{Admission, Elections, LeaderLease, Recollection, heartbeats};
use crate::raft_types::{
    EntryOutcome, EntryPayload, LogId, Payload, RaftRequest, RaftResponse, Snapshot, SnapshotMeta,
    StoredMembership, TypeConfig,
};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// A snapshot in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytewise(pub Vec<u8>);

impl SnapshotSource for Bytewise {
    fn total_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        buf.copy_from_slice(&self.0[from..from + buf.len()]);
        Ok(())
    }
}

impl IncomingSnapshot for Bytewise {
    type Data = Bytewise;

    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn finish(self) -> io::Result<Bytewise> {
        Ok(self)
    }
}

pub struct Memory;

impl SnapshotSink for Memory {
    type Data = Bytewise;
    type Incoming = Bytewise;

    fn begin(&self) -> io::Result<Bytewise> {
        Ok(Bytewise::default())
    }
}

/// Everything that was applied, in order.
#[derive(Clone, Default)]
pub struct Journal {
    pub last: Option<LogId>,
    pub membership: StoredMembership,
    pub payloads: Vec<Bytes>,
    snapshot: Option<(SnapshotMeta, Bytewise)>,
    pub installed: usize,
}

#[derive(Clone, Default)]
pub struct Machine(pub Arc<Mutex<Journal>>);

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = Bytewise;
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let journal = self.0.lock();
        Ok((journal.last, journal.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut journal = self.0.lock();
            journal.last = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(Payload(bytes)) => journal.payloads.push(bytes),
                EntryPayload::Membership(membership) => {
                    journal.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            drop(journal);
            if let Some(responder) = responder {
                responder.send(EntryOutcome::Applied);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Bytewise) -> Result<(), io::Error> {
        let payloads = codec::decode(&snapshot.0, snapshot.0.len()).map_err(io::Error::other)?;
        let mut journal = self.0.lock();
        journal.payloads = payloads;
        journal.last = meta.last_log_id;
        journal.membership = meta.last_membership.clone();
        journal.snapshot = Some((meta.clone(), snapshot));
        journal.installed += 1;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Bytewise>>, io::Error> {
        let current = self.0.lock().snapshot.clone();
        Ok(current.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = Bytewise;

    async fn build_snapshot(&mut self) -> Result<Snapshot<Bytewise>, io::Error> {
        let mut journal = self.0.lock();
        let meta = SnapshotMeta { last_log_id: journal.last, last_membership: journal.membership.clone() };
        let snapshot = Bytewise(codec::encode(&journal.payloads));
        journal.snapshot = Some((meta.clone(), snapshot.clone()));
        Ok(Snapshot { meta, snapshot })
    }
}

/// Which requests of Raft a node was asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub votes: usize,
    pub pre_votes: usize,
}

struct Counting {
    inner: Arc<dyn RaftService>,
    asked: watch::Sender<Asked>,
}

struct CountingConnection {
    inner: Box<dyn RaftConnection>,
    asked: watch::Sender<Asked>,
}

impl RaftService for Counting {
    fn open(&self, from: NodeId, lane: Lane) -> Box<dyn RaftConnection> {
        Box::new(CountingConnection { inner: self.inner.open(from, lane), asked: self.asked.clone() })
    }
}

impl RaftConnection for CountingConnection {
    fn handle(&mut self, request: RaftRequest) -> futures_util::future::BoxFuture<'static, RaftResponse> {
        match request {
            RaftRequest::Vote(_) => self.asked.modify(|asked| asked.votes += 1),
            RaftRequest::PreVote(_) => self.asked.modify(|asked| asked.pre_votes += 1),
            _ => {}
        }
        self.inner.handle(request)
    }
}

pub struct Node {
    pub raft: Raft<TypeConfig, Machine>,
    pub machine: Machine,
    pub member: Member,
    pub asked: watch::Sender<Asked>,
    log: LogStore,
    tasks: TaskGroup,
    _data: TempDir,
}

pub struct Cluster {
    pub nodes: BTreeMap<u64, Node>,
    pub cuts: Cuts,
}

impl Cluster {
    /// This number of nodes that do not know each other yet.
    pub async fn start(count: u64) -> Cluster {
        let mut cluster = Cluster { nodes: BTreeMap::new(), cuts: Cuts::new() };
        for id in 1..=count {
            let node = start_node(id, &cluster.cuts).await;
            cluster.nodes.insert(id, node);
        }
        cluster
    }

    /// Nodes 1 to 3 become a cluster and have a leader, whose number is returned.
    pub async fn form(&self) -> u64 {
        let members: BTreeMap<u64, Member> = (1..=3).map(|id| (id, self.nodes[&id].member.clone())).collect();
        self.nodes[&1].raft.initialize(members).await.expect("is a new cluster");
        self.leader_among(&[1, 2, 3]).await
    }

    /// Waits until all of these follow the same one of them.
    pub async fn leader_among(&self, ids: &[u64]) -> u64 {
        let first = &self.nodes[&ids[0]].raft;
        loop {
            let metrics = first.wait(Some(PATIENCE));
            let found =
                metrics.metrics(|m| m.current_leader.is_some_and(|l| ids.contains(&l)), "a leader").await;
            let found = found.expect("a leader is elected");
            let (leader, term) = (found.current_leader.expect("just checked"), found.current_term);
            let mut agree = true;
            for id in ids {
                let same = self.nodes[id].raft.wait(Some(PATIENCE));
                let same =
                    same.metrics(|m| m.current_term >= term && m.current_leader.is_some(), "agreement").await;
                agree &= same.expect("hears of the leader").current_leader == Some(leader);
            }
            if agree {
                return leader;
            }
        }
    }

    /// Writes through the leader, as soon as it knows that a quorum follows it.
    pub async fn write(&self, leader: u64, payload: Vec<u8>) -> u64 {
        let payload = Payload(payload.into());
        let written = async {
            loop {
                let error = match self.nodes[&leader].raft.client_write(payload.clone()).await {
                    Ok(written) => return written.log_id.index,
                    Err(error) => error,
                };
                let refused = error.forward_to_leader().map(|forward| forward.reason);
                assert_eq!(
                    refused,
                    Some(ForwardReason::LeaseExpired),
                    "node {leader} does not lead: {error}"
                );
                let wait = self.nodes[&leader].raft.wait(Some(PATIENCE));
                wait.leader_with_quorum_acked(Some(TypeConfig::now()), "quorum").await.expect("is followed");
            }
        };
        time::timeout(PATIENCE, written).await.expect("the leader writes in time")
    }

    /// Waits until all of these have applied that much, and checks that it is the same.
    pub async fn agree(&self, ids: &[u64], index: u64) {
        for id in ids {
            let applied =
                self.nodes[id].raft.wait(Some(PATIENCE)).applied_index_at_least(Some(index), "applies").await;
            applied.unwrap_or_else(|error| panic!("node {id} does not apply: {error}"));
        }
        let want = self.nodes[&ids[0]].machine.0.lock().payloads.clone();
        for id in ids {
            assert!(
                self.nodes[id].machine.0.lock().payloads == want,
                "node {id} differs from node {}",
                ids[0]
            );
        }
    }

    pub async fn stop(self) {
        for node in self.nodes.into_values() {
            node.raft.shutdown().await.expect("Raft ends");
            node.tasks.stop().await;
            node.log.log().close().await;
        }
        self.cuts.stop().await;
    }
}

fn timers() -> RaftConfig {
    RaftConfig {
        heartbeat_ms: 100,
        election_timeout_min_ms: 400,
        election_timeout_max_ms: 800,
        ..RaftConfig::default()
    }
}

/// The lease of a voter with the timers of these tests.
pub fn leased() -> (Acks, LeaderLease) {
    let acks = Acks::default();
    (acks.clone(), LeaderLease::new(&timers(), acks))
}

async fn start_node(id: u64, cuts: &Cuts) -> Node {
    let data = TempDir::new().expect("a temporary folder");
    let identity_on_disk = rowlock_wal::Identity { cluster: "test".into(), node: NodeId(id) };
    let opened = Storage::open(
        data.path(),
        identity_on_disk,
        Arc::new(|_| panic!("the disk failed")),
        Arc::new(Metrics::default()),
    )
    .await
    .expect("opens");
    let tasks = TaskGroup::new(Shutdown::new());
    let pool = PeerPool::new(identity(id), tasks.clone());
    let machine = Machine::default();
    let config = Config {
        heartbeat_interval: 100,
        election_timeout_min: 10_000,
        election_timeout_max: 10_001,
        max_payload_entries: 64,
        enable_elect: false,
        enable_tick: false,
        enable_leader_restore: Some(false),
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        ..Config::default()
    };
    let config = Arc::new(config.validate().expect("is valid"));
    let log = LogStore::new(opened.log);
    let (acks, lease) = leased();
    let network = Network::new(pool.clone(), acks.clone(), lease.clone());
    let raft = Raft::new(id, config, network, log.clone(), machine.clone()).await.expect("starts");
    acks.follow_raft(raft.metrics());
    let (admission, timers) = (Admission::open(), timers());
    let recollection = Recollection::default();
    let elections =
        Elections { raft: raft.clone(), peers: pool, lease: lease.clone(), admission, recollection, timers };
    tasks.spawn_until_shutdown("elections", elections.run());
    tasks.spawn_until_shutdown("heartbeats", heartbeats::send(raft.clone(), Duration::from_millis(100)));
    let asked = watch::channel(Asked::default()).0;
    let dispatch = Arc::new(RaftDispatch::new(raft.clone(), lease, Arc::new(Memory), Arc::default()));
    let counting = Arc::new(Counting { inner: dispatch, asked: asked.clone() });
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().to_string();
    PeerServer::new(identity(id), counting, Service::new(), tasks.clone()).start(listener);
    let member = Member { peer_addr: relay(id, address, cuts).await, client_addr: String::new() };
    Node { raft, machine, member, asked, log, tasks, _data: data }
}
