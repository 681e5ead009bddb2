//! Upgrade of a node: the cluster's version rises without an operator, and then the data folder refuses the
//! old release.

use std::time::Duration;

use crate::support::in_time;
use rowlock_coordinator::config::{Finalize, UpgradeConfig};
use rowlock_coordinator::{Node, NodeConfig};
use rowlock_env::time;
use rowlock_state::version::Versions;
use rowlock_wal::check_release;

#[tokio::test]
async fn raised_version_is_recorded_in_the_folder_for_an_older_release() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = NodeConfig::single(folder.path());
    config.versions = Versions::of_a_rehearsal();
    config.upgrade = UpgradeConfig { finalize: Finalize::Auto, health_ms: 0 };
    let node = Node::start(config).await.expect("the node starts");
    let refused = async {
        while check_release(folder.path(), &Versions::of_this_release()).is_ok() {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time("the folder's refusal of the old release", refused).await;
    node.shutdown().await;
}
