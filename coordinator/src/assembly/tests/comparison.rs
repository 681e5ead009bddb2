//! Nodes that compare their states.

#[path = "../../../../tests/support/ports.rs"]
mod ports;

use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;

use super::{PATIENCE, opening};
use crate::{Node, NodeConfig, NodeError};

/// As if a bit had flipped in its memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_differing_state_stops_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut text = format!("name = \"test-{}\"\n", ports::free());
    for id in 1..=3 {
        text += &format!("[[node]]\nid = {id}\n");
        for name in ["client", "peer", "http"] {
            text += &format!("{name} = \"{}\"\n", ports::address());
        }
    }
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let config = NodeConfig::from_toml(&text, folder.path(), NodeId(id)).expect("the text is right");
        nodes.push(Node::start(config).await.expect("starts"));
    }
    for node in &nodes {
        node.serving(Instant::now() + PATIENCE).await.expect("serves");
    }
    let leader =
        nodes.iter().position(|node| node.status().borrow().leader == Some(node.status().borrow().node));
    let wrong = nodes.swap_remove(leader.expect("one leads"));
    wrong.context.replica.state.write().apply(1, &opening(), &mut ()).result.expect("opens");
    let stopped = time::timeout(PATIENCE, wrong.stopped()).await.expect("it notices");
    let NodeError::Differs(difference) = &stopped else { panic!("{stopped}") };
    assert!(difference.to_string().contains("a majority has another one"), "{difference}");
    wrong.shutdown().await;
    for node in nodes {
        node.serving(Instant::now() + PATIENCE).await.expect("goes on without it");
        node.shutdown().await;
    }
}
