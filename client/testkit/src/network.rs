//! The switchable network alone, for clusters of processes: a door in front of each node's port for nodes.

use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_proto::NodeId;
use rowlock_transport::Identity;

use super::proxy::{Behind, Door};
use super::rules::Rules;

/// Links between the nodes of a cluster. A cut link is silent, as for [`crate::Cluster`].
pub struct PeerNetwork {
    rules: watch::Sender<Rules>,
}

impl PeerNetwork {
    /// For each node of `cluster`: its number, from 1 on, where the others find it, and where it listens.
    ///
    /// # Panics
    /// An address where the others find a node is taken.
    pub async fn start(cluster: &str, routes: Vec<(u64, String, String)>) -> PeerNetwork {
        let (rules, _) = watch::channel(Rules::default());
        let tasks = TaskGroup::new(Shutdown::new());
        for (id, found, listens) in routes {
            let listener = Listener::bind(&found).await.expect("the address is free");
            let behind = Behind::Nodes(Identity { cluster: cluster.to_owned(), node: NodeId(id) });
            let (_, target) = watch::channel(Some(listens));
            let door = Door { node: index(id), behind, target, rules: rules.subscribe() };
            tasks.spawn("door", door.serve(listener, tasks.clone()));
        }
        PeerNetwork { rules }
    }

    /// Cuts all links of node `id`, one of `nodes`.
    pub fn isolate(&self, id: u64, nodes: &[u64]) {
        let nodes: Vec<usize> = nodes.iter().copied().map(index).collect();
        self.rules.modify(|rules| rules.cut(&[index(id)], &nodes));
    }

    /// Makes all links whole.
    pub fn heal(&self) {
        self.rules.modify(Rules::heal);
    }
}

/// Nodes are counted from 0 by the test kit.
fn index(id: u64) -> usize {
    usize::try_from(id - 1).expect("a cluster is small")
}
