//! Discovery with `[cluster]`: nodes find each other by seed addresses, without a list of all nodes.
//!
//! In the flow: a node resolves the seeds repeatedly, and tries each address for the nodes 1 to `expect`.
//! Each founder sends its addresses to node 1. Node 1 forms the cluster when it knows the addresses of all
//! founders and every founder has reported an empty log.
//!
//! Invariant: DNS does not decide which nodes found the cluster. The founders are the nodes 1 to `expect`,
//! and only node 1 forms the cluster, with all founders. A name of only a few founders, or of strangers,
//! makes nodes wait and has no other effect (docs/decisions/discovery.md).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::peer::{HandshakeRefusal, Lane, PeerError, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_env::net;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_wal::entry::Member;

use super::verdict::Answers;
use super::{ASK_DEADLINE, Bootstrap, member};
use crate::config::Discovery;

/// Number of the node that forms the cluster.
const FOUNDER: NodeId = NodeId(1);
/// Interval of the lookups while a founder is missing.
const LOOKUP_EVERY: Duration = Duration::from_millis(500);
/// Time before an address is tried again at which no missing founder answered.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// Interval of the log line that lists the missing founders.
const LOG_EVERY: Duration = Duration::from_secs(10);
const LOOK_UP_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum addresses tried in one round. A name with more addresses leads to strangers.
const ADDRESSES_MAX: usize = 64;

/// The result of trying an address.
#[derive(Clone, Copy, Debug)]
enum Tried {
    Found(NodeId),
    /// This node itself, a stranger, or a founder that was not missing. Holds the time of the next try.
    Another(Instant),
}

/// Addresses that the founders have sent to node 1. Clones share the map.
#[derive(Clone, Debug, Default)]
pub struct Founders(Arc<Mutex<BTreeMap<NodeId, Member>>>);

impl Founders {
    /// Records the addresses of a founder. Ignores all other nodes, which bounds the map.
    pub fn record(&self, discovery: &Discovery, node: NodeId, member: Member) {
        if node != FOUNDER && discovery.founders().any(|founder| founder == node) {
            self.0.lock().insert(node, member);
        }
    }

    fn get(&self) -> BTreeMap<NodeId, Member> {
        self.0.lock().clone()
    }
}

impl Bootstrap {
    /// Searches for the founders while this node has no log. Never returns.
    pub(super) async fn discover(&self) {
        let (mut tried, mut logged_at) = (BTreeMap::new(), None);
        while let Some(discovery) = &self.node.config.discovery {
            match facts::recovered(&self.node.raft).await {
                Ok(found) if found.last_index.is_none() => {}
                // The log contains the addresses.
                _ => break,
            }
            for (node, told) in self.founders.get() {
                if self.node.peers.peer(node).is_none() {
                    self.node.peers.set_address(node, &told.dial_addr());
                }
            }
            self.search_seeds(discovery, &mut tried).await;
            let missing = self.missing(discovery);
            let is_late = logged_at.is_none_or(|logged_at: Instant| logged_at.elapsed() >= LOG_EVERY);
            if is_late && !missing.is_empty() {
                let list: Vec<String> = missing.iter().map(NodeId::to_string).collect();
                tracing::info!(
                    seeds = discovery.seeds.join(","),
                    missing = list.join(", "),
                    "looking for nodes"
                );
                logged_at = Some(time::now());
            }
            time::sleep(LOOKUP_EVERY).await;
        }
        std::future::pending().await
    }

    fn missing(&self, discovery: &Discovery) -> BTreeSet<NodeId> {
        // A founder that was found and answers no more may have another address now.
        let answers =
            |node: NodeId| self.node.peers.peer(node).is_some_and(|peer| peer.is_connected(Lane::Control));
        let is_missing = |node: &NodeId| *node != self.node.config.id && !answers(*node);
        discovery.founders().filter(is_missing).collect()
    }

    async fn search_seeds(&self, discovery: &Discovery, tried: &mut BTreeMap<SocketAddr, Tried>) {
        let missing = self.missing(discovery);
        if missing.is_empty() {
            return;
        }
        let mut addresses = BTreeSet::new();
        for seed in &discovery.seeds {
            match time::timeout(LOOK_UP_DEADLINE, net::addresses(seed)).await {
                Ok(Ok(found)) => addresses.extend(found),
                Ok(Err(error)) => tracing::debug!(seed, %error, "no address of a seed"),
                Err(_) => tracing::debug!(seed, "no address of a seed in time"),
            }
        }
        let now = time::now();
        tried.retain(|_, tried| match tried {
            Tried::Found(node) => !missing.contains(node),
            Tried::Another(until) => *until > now,
        });
        let new = addresses.into_iter().filter(|address| !tried.contains_key(address)).take(ADDRESSES_MAX);
        let tries = new.map(|address| async move { (address, self.try_at(discovery, address).await) });
        for (address, outcome) in futures_util::future::join_all(tries).await {
            outcome.and_then(|outcome| tried.insert(address, outcome));
        }
    }

    /// Returns the founder at this address, or `None` if the address does not answer.
    async fn try_at(&self, discovery: &Discovery, address: SocketAddr) -> Option<Tried> {
        for node in self.missing(discovery) {
            let peer = self.node.peers.stranger(node, &address.to_string());
            let deadline = Instant::now() + ASK_DEADLINE;
            match peer.call(Lane::Control, &Request::Introduce, deadline).await {
                // The other node may know this node by another folder; the admission round reports that.
                Ok(_) | Err(PeerError::Refused { refusal: HandshakeRefusal::OtherFolder { .. }, .. }) => {
                    tracing::info!(%node, %address, "found");
                    self.node.peers.set_address(node, &address.to_string());
                    return Some(Tried::Found(node));
                }
                Err(PeerError::Refused { refusal, .. }) => {
                    tracing::debug!(%node, %address, %refusal, "another node answered");
                }
                Err(error) => {
                    tracing::debug!(%node, %address, %error, "no node answered");
                    return None;
                }
            }
        }
        Some(Tried::Another(time::now() + RETRY_PAUSE))
    }

    /// Returns the members with which this node forms the cluster now, or `None` if another node forms the
    /// cluster or a founder is missing. Without `[cluster]` these are the voters of `cluster.toml`.
    pub(super) async fn founding_members(&self) -> Option<BTreeMap<NodeId, Member>> {
        let Some(discovery) = &self.node.config.discovery else {
            let voters = self.node.config.nodes.iter().filter(|m| !m.learner);
            return Some(voters.map(|m| (m.id, member(m))).collect());
        };
        let me = self.node.config.id;
        let entry = self.node.config.nodes.iter().find(|m| m.id == me);
        let ours = entry.map(member).expect("a node's configuration holds its own entry");
        // A majority does not suffice here: the caller needs every founder.
        let answers = self.all_introductions().await;
        if me != FOUNDER {
            self.send_addresses_to_founder(&answers, ours).await;
            return None;
        }
        let mut founders = self.founders.get();
        founders.insert(me, ours);
        let is_complete = discovery.founders().all(|node| founders.contains_key(&node));
        let is_empty = |node| answers.get(&node).is_some_and(|it| it.is_fresh() && it.voters.is_empty());
        let are_empty = discovery.founders().all(|node| node == me || is_empty(node));
        assert!(founders.keys().all(|node| node.0 <= discovery.expect), "only founders are recorded");
        (is_complete && are_empty).then_some(founders)
    }

    /// Sends this node's addresses to node 1. Node 1 records the addresses and refuses the request with
    /// `NotLeader`.
    async fn send_addresses_to_founder(&self, answers: &Answers, ours: Member) {
        if !answers.get(&FOUNDER).is_some_and(|answer| answer.is_fresh() && answer.voters.is_empty()) {
            return;
        }
        let request = Request::AddLearner { node: self.node.config.id, member: ours };
        let deadline = Instant::now() + ASK_DEADLINE;
        let answer = self.node.peers.call(FOUNDER, Lane::Control, &request, deadline).await;
        if !matches!(answer, Ok(Response::Refused(_))) {
            tracing::debug!(?answer, "node 1 was not told the addresses of this node");
        }
    }
}
