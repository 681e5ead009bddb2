//! Process of a node: starts, watches and stops the production node as `rowlock serve` does.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use rowlock_coordinator::config::{
    AcknowledgeLocks, LocksConfig, NodeEntry, PeerSecurity, RaftConfig, SessionConfig,
};
use rowlock_coordinator::{Node, NodeConfig, NodeError, NodeHook};
use rowlock_env::net::Listener;
use rowlock_env::worker;
use tokio::sync::mpsc::UnboundedReceiver;

use super::node_statuses::{NodeStatuses, Order, Process, node_id};
use super::operator::SUPER_DIGEST;
use super::rest_door::{self, Door};
use super::shape::Shape;
use super::tokens;

/// Returns the address of the node at `place`.
pub fn address(place: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, u8::try_from(place + 1).expect("a cluster has few nodes"))
}

pub const CLUSTER: &str = "simulation";
pub const DATA_DIR: &str = "/data";
/// Number of scheduled backups that a node keeps.
pub const BACKUPS_KEPT: u32 = 3;
/// Exceeds every session timeout of the workload, yet new clusters need not wait long.
pub const MAX_TIMEOUT_MS: u32 = 12_000;

/// Returns the configuration of the node at `place`. The nodes at `known` are the entries of `cluster.toml`;
/// entries that are not founders are learners.
pub fn config(
    shape: &Shape,
    place: usize,
    known: &[usize],
    is_founder: impl Fn(usize) -> bool,
) -> NodeConfig {
    let entry = |place| entry(place, !is_founder(place));
    let members = known.iter().map(|place| entry(*place)).collect();
    let own = entry(place);
    let mut config = NodeConfig::single(own.data_dir.clone());
    config.id = node_id(place);
    config.name = CLUSTER.to_owned();
    (config.client_addr, config.peer_addr, config.http_addr) =
        (own.client_addr, own.peer_addr, own.http_addr);
    // Plain TCP is enough: the simulated network has no eavesdropper.
    config.peer.security = Some(PeerSecurity::None);
    config.learner = own.learner;
    config.nodes = members;
    config.client.super_digest = Some(SUPER_DIGEST.to_owned());
    config.session = SessionConfig { min_timeout_ms: 1_000, max_timeout_ms: shape.max_timeout_ms };
    config.raft = RaftConfig {
        snapshot_every: shape.snapshot_every,
        keep_logs: shape.keep_logs,
        ..RaftConfig::default()
    };
    config.history.enabled = shape.history_bytes.is_some();
    config.history.max_bytes = shape.history_bytes.unwrap_or(config.history.max_bytes);
    // Fixed, so that runs do not depend on the machine's memory.
    config.limits.memory_bytes = Some(1 << 30);
    config.log_segment_bytes = shape.segment_bytes;
    // The same number of segments as in production.
    config.limits.warn_free_bytes = 16 * shape.segment_bytes;
    config.limits.min_free_bytes = 4 * shape.segment_bytes;
    config.limits.reserve_bytes = shape.segment_bytes;
    config.autopilot.readmit_wiped = shape.readmits;
    if let Some(autopilot) = shape.autopilot {
        config.autopilot.promote_after_ms = Some(autopilot.promote_after_ms);
        config.autopilot.remove_dead_after_ms = autopilot.remove_dead_after_ms;
        config.autopilot.min_voters = autopilot.min_voters as u32;
    }
    (config.backup.every_ms, config.backup.keep) = (shape.backup_every_ms, BACKUPS_KEPT);
    config.znodes.sweep_interval_ms = shape.sweep_interval_ms;
    if let Some(flush_within_ms) = shape.flush_within_ms {
        config.locks = LocksConfig { acknowledge: AcknowledgeLocks::Written, flush_within_ms };
    }
    config.http.token_file = shape.asks_tokens.then(tokens::path);
    config
}

fn entry(place: usize, learner: bool) -> NodeEntry {
    let ip = address(place);
    let addresses = [2181, 2281, 2381].map(|port| format!("{ip}:{port}"));
    NodeEntry { learner, ..NodeEntry::new(node_id(place), addresses, PathBuf::from(DATA_DIR)) }
}

/// Runs a node from the start to the end of its process.
pub async fn process(
    config: NodeConfig,
    hook: Arc<dyn NodeHook>,
    (statuses, place): (NodeStatuses, usize),
    mut orders: UnboundedReceiver<Order>,
) {
    if config.http.token_file.is_some()
        && let Err(error) = worker::run_blocking("tokens", tokens::write_once).await
    {
        return statuses.end(place, Process::failed(error));
    }
    let node = match Node::start_hooked(config, hook).await {
        Ok(node) => node,
        Err(error) => return statuses.end(place, Process::failed(error)),
    };
    let door = match open_door(&node, place).await {
        Ok(door) => door,
        Err(error) => {
            node.shutdown().await;
            return statuses.end(place, Process::failed(error));
        }
    };
    let mut status = node.status();
    let end = loop {
        statuses.publish(place, status.borrow_and_update().clone());
        tokio::select! {
            biased;
            // A person or a supervisor starts the node again.
            NodeError::LeftBehind = node.stopped() => break Process::LeftBehind,
            error = node.stopped() => {
                let differs = matches!(error, NodeError::Differs(_));
                break Process::Failed { why: error.to_string(), differs };
            }
            order = orders.recv() => match order {
                Some(Order::HandOver(to)) => node.hand_over(to).await,
                Some(Order::Restart) => break Process::Restarting,
                Some(Order::Stop) | None => break Process::Stopped,
            },
            changed = status.changed() => {
                if changed.is_err() {
                    break Process::failed("its status ended");
                }
            }
        }
    };
    door.close().await;
    node.shutdown().await;
    statuses.end(place, end);
}

/// Opens the endpoint for HTTP clients.
async fn open_door(node: &Node, place: usize) -> std::io::Result<Door> {
    let api = node.api().expect("Invariant: a simulated node has its API without a listener");
    let listener = Listener::bind(&format!("{}:{}", address(place), rest_door::PORT)).await?;
    Ok(Door::open(listener, api))
}
