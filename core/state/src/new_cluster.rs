//! The identity of the cluster, as a part of the state. `restore` gives a state to another cluster.

use rowlock_proto::ClusterId;
use serde::{Deserialize, Serialize};

/// The identity of a new cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCluster {
    pub id: ClusterId,
    /// Milliseconds without new sessions; 0: clients may open sessions at once.
    pub grace_ms: u32,
}
