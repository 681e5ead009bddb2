//! How nodes find each other with `[cluster]`: by the addresses to which the seeds lead, instead of a list of
//! all nodes.
//!
//! In the flow: a node looks the seeds up again and again, and tries at each address whether one of the nodes
//! 1 to `expect` answers there. Each founder tells node 1 under which addresses it is found. Node 1 forms the
//! cluster when it knows the addresses of all founders and all of them say that they have nothing.
//!
//! Invariant: who founds does not depend on what a name leads to. The founders are the nodes 1 to `expect`,
//! and only node 1 forms the cluster, with all of them. A name that leads to a few of them, or to strangers,
//! makes nodes wait and nothing else (docs/decisions/discovery.md).

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
use rowlock_types::member::Member;

use super::judge::Answers;
use super::{ASK_DEADLINE, Bootstrap, member};
use crate::config::Discovery;

/// The node that forms the cluster.
const FOUNDER: NodeId = NodeId(1);
/// How often the seeds are looked up while a founder is missing.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// If other nodes answer than the missing ones, these are looked for again after this time.
const AGAIN: Duration = Duration::from_secs(10);
/// How often it is said who is missing.
const SAY_EVERY: Duration = Duration::from_secs(10);
const LOOK_UP_DEADLINE: Duration = Duration::from_secs(5);
/// Addresses that are tried in one look. A name that leads to more leads to strangers.
const ADDRESSES_MAX: usize = 64;

/// The result of trying an address.
#[derive(Clone, Copy, Debug)]
enum Tried {
    Found(NodeId),
    /// None of those who were missing, this node itself or a stranger; not to be tried again before this.
    Another(Instant),
}

/// What the founders have told node 1 of their addresses. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Founders(Arc<Mutex<BTreeMap<NodeId, Member>>>);

impl Founders {
    /// A founder says where it is found. Others are not taken note of, so the map is bounded.
    pub fn note(&self, discovery: &Discovery, node: NodeId, member: Member) {
        if node != FOUNDER && discovery.founders().any(|founder| founder == node) {
            self.0.lock().insert(node, member);
        }
    }

    fn get(&self) -> BTreeMap<NodeId, Member> {
        self.0.lock().clone()
    }
}

impl Bootstrap {
    /// Looks for the founders as long as this node has no log. Does not end.
    pub(super) async fn discover(&self) {
        let (mut tried, mut said) = (BTreeMap::new(), None);
        while let Some(discovery) = &self.config.discovery {
            match facts::recovered(&self.raft).await {
                Ok(found) if found.last_index.is_none() => {}
                // The log has the addresses.
                _ => break,
            }
            for (node, told) in self.founders.get() {
                if self.peers.peer(node).is_none() {
                    self.peers.set_address(node, &told.dial_addr());
                }
            }
            self.look_for(discovery, &mut tried).await;
            let missing = self.missing(discovery);
            let is_late = said.is_none_or(|said: Instant| said.elapsed() >= SAY_EVERY);
            if is_late && !missing.is_empty() {
                let list: Vec<String> = missing.iter().map(NodeId::to_string).collect();
                tracing::info!(
                    seeds = discovery.seeds.join(","),
                    missing = list.join(", "),
                    "looking for nodes"
                );
                said = Some(time::now());
            }
            time::sleep(LOOK_EVERY).await;
        }
        std::future::pending().await
    }

    fn missing(&self, discovery: &Discovery) -> BTreeSet<NodeId> {
        // One that was found and does not answer any more may be at another address now.
        let answers =
            |node: NodeId| self.peers.peer(node).is_some_and(|peer| peer.is_connected(Lane::Control));
        let is_missing = |node: &NodeId| *node != self.config.id && !answers(*node);
        discovery.founders().filter(is_missing).collect()
    }

    async fn look_for(&self, discovery: &Discovery, tried: &mut BTreeMap<SocketAddr, Tried>) {
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

    /// Who is at this address, if anybody answers.
    async fn try_at(&self, discovery: &Discovery, address: SocketAddr) -> Option<Tried> {
        for node in self.missing(discovery) {
            let peer = self.peers.stranger(node, &address.to_string());
            let deadline = Instant::now() + ASK_DEADLINE;
            match peer.call(Lane::Control, &Request::Introduce, deadline).await {
                // Or it knows this node by another folder: the node that asks it next is told.
                Ok(_) | Err(PeerError::Refused { refusal: HandshakeRefusal::OtherFolder { .. }, .. }) => {
                    tracing::info!(%node, %address, "found");
                    self.peers.set_address(node, &address.to_string());
                    return Some(Tried::Found(node));
                }
                Err(PeerError::Refused { refusal, .. }) => {
                    tracing::debug!(%node, %address, %refusal, "it is another one");
                }
                Err(error) => {
                    tracing::debug!(%node, %address, %error, "nobody answers");
                    return None;
                }
            }
        }
        Some(Tried::Another(time::now() + AGAIN))
    }

    /// With whom this node is to form the cluster now, if it is to. Without `[cluster]`: the voters of
    /// `cluster.toml`.
    pub(super) async fn founding_members(&self) -> Option<BTreeMap<NodeId, Member>> {
        let Some(discovery) = &self.config.discovery else {
            let voters = self.config.nodes.iter().filter(|m| !m.learner);
            return Some(voters.map(|m| (m.id, member(m))).collect());
        };
        let me = self.config.id;
        let entry = self.config.nodes.iter().find(|m| m.id == me);
        let ours = entry.map(member).expect("a node's configuration holds its own entry");
        // Half of them do not suffice here.
        let answers = self.everybody().await;
        if me != FOUNDER {
            self.tell_founder(&answers, ours).await;
            return None;
        }
        let mut founders = self.founders.get();
        founders.insert(me, ours);
        let is_complete = discovery.founders().all(|node| founders.contains_key(&node));
        let is_empty = |node| answers.get(&node).is_some_and(|it| it.is_fresh() && it.voters.is_empty());
        let are_empty = discovery.founders().all(|node| node == me || is_empty(node));
        assert!(founders.keys().all(|node| node.0 <= discovery.expect), "only founders are noted");
        (is_complete && are_empty).then_some(founders)
    }

    /// Node 1 answers that it does not lead, and takes note all the same.
    async fn tell_founder(&self, answers: &Answers, ours: Member) {
        if !answers.get(&FOUNDER).is_some_and(|answer| answer.is_fresh() && answer.voters.is_empty()) {
            return;
        }
        let request = Request::AddLearner { node: self.config.id, member: ours };
        let deadline = Instant::now() + ASK_DEADLINE;
        let answer = self.peers.call(FOUNDER, Lane::Control, &request, deadline).await;
        if !matches!(answer, Ok(Response::Refused(_))) {
            tracing::debug!(?answer, "node 1 was not told the addresses of this node");
        }
    }
}
