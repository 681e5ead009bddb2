//! Shared helpers of tests with whole nodes: a cluster in one process.

#[path = "../../../../tests/support/ports.rs"]
mod ports;

use std::path::Path;
use std::time::Duration;

use rowlock_coordinator::{Instant, Node, NodeConfig, NodeId, Role};
use rowlock_env::time;

/// Longer than all steps on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// Waits for `wanted` with a deadline, so a stuck test names the step.
pub async fn in_time<T>(what: &str, wanted: impl Future<Output = T>) -> T {
    time::timeout(SOON, wanted).await.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}"))
}

/// Starts three serving nodes and returns the leader first. The cluster has a unique name: another cluster on
/// recently freed ports cannot be mistaken for this one.
pub async fn cluster(folder: &Path) -> Vec<Node> {
    let mut text = format!("name = \"test-{}\"\n", ports::free());
    for id in 1..=3 {
        text += &format!("[[node]]\nid = {id}\n");
        for name in ["client", "peer", "http"] {
            text += &format!("{name} = \"{}\"\n", ports::address());
        }
    }
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let config = NodeConfig::from_toml(&text, folder, NodeId(id)).expect("the text is right");
        nodes.push(Node::start(config).await.expect("the node starts"));
    }
    for node in &nodes {
        node.serving(Instant::now() + SOON).await.expect("the cluster forms");
    }
    let leads = |node: &Node| node.status().borrow().role == Role::Leader;
    nodes.sort_by_key(|node| !leads(node));
    nodes
}
