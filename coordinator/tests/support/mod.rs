//! What tests of whole nodes share: a cluster in one process.

use std::path::Path;
use std::time::Duration;

use rowlock_coordinator::{Instant, Node, NodeConfig, NodeId, Role};
use rowlock_env::net;

/// Longer than anything here takes on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// Three nodes that serve, the leader first, on ports that were free a moment ago.
pub async fn cluster(folder: &Path) -> Vec<Node> {
    let mut text = String::from("name = \"test\"\n");
    for id in 1..=3 {
        text += &format!("[[node]]\nid = {id}\n");
        for name in ["client", "peer", "http"] {
            let free = net::Listener::bind("127.0.0.1:0").await.expect("a free port");
            text += &format!("{name} = \"{}\"\n", free.local_addr());
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
