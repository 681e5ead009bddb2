//! The superuser changes the members of a running cluster as with ZooKeeper: a learner becomes a voter, the
//! leader is removed, and what would have no quorum is refused with nothing changed.

use rowlock_client::{Acl, CreateMode};
use rowlock_frames::raw::{RawClient, SESSION_MS};
use rowlock_proto::{ErrorCode, Request, Response};

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::eventually;

const SUPER: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_becomes_a_voter_the_leader_leaves_and_nothing_without_a_quorum_is_begun() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    cluster.add_learner(4);
    cluster.start_node(4);
    cluster.wait_until_serves(4).await;
    let leader = cluster.leader().await;
    let mut superuser = Superuser::connect(cluster.endpoint(4)).await;

    let nobody = "server.7=127.0.0.1:1:11;1,server.8=127.0.0.1:2:12;2,server.9=127.0.0.1:3:13;3,server.10=127.0.0.1:4:14;4";
    assert_eq!(superuser.reconfig(Some(nobody), None).await, Err(ErrorCode::NewConfigNoQuorum));

    let listed = superuser.config().await;
    let line = listed.lines().find(|line| line.starts_with("server.4=")).expect("node 4 is listed");
    assert!(line.contains(":observer;"), "{listed}");
    let joining = line.replace(":observer;", ":participant;");
    let config = superuser.reconfig(Some(&joining), None).await.unwrap();
    assert!(config.contains(&joining) && !config.contains("observer"), "{config}");

    let config = superuser.reconfig(None, Some(&leader.to_string())).await.unwrap();
    assert!(!config.contains(&format!("server.{leader}=")), "{config}");
    assert_eq!(config.matches(":participant;").count(), 3, "{config}");
    let stands_aside =
        || async { cluster.status(leader).await.filter(|status| status["serving"] == false).map(drop) };
    eventually("the removed node serves nobody", SERVING, stands_aside).await;
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    let client = cluster.client_of(cluster.endpoint(4)).await;
    client.create("/goes-on", None, CreateMode::Persistent, Acl::open()).await.unwrap();

    // What the cluster has become is remembered, whatever the files say.
    cluster.kill(4);
    cluster.start_node(4);
    cluster.wait_until_serves(4).await;
    assert!(client.exists("/goes-on").await.unwrap().is_some());
}

/// A connection that has authenticated as the superuser.
struct Superuser(RawClient);

impl Superuser {
    async fn connect(addr: &str) -> Superuser {
        let mut client = RawClient::attach(addr, SESSION_MS).await;
        client.become_superuser().await;
        Superuser(client)
    }

    async fn config(&mut self) -> String {
        let (data, _) = self.0.data("/zookeeper/config", false).await.unwrap();
        String::from_utf8(data.to_vec()).unwrap()
    }

    async fn reconfig(&mut self, joining: Option<&str>, leaving: Option<&str>) -> Result<String, ErrorCode> {
        let [joining, leaving] = [joining, leaving].map(|list| list.map(str::to_owned));
        let request = Request::Reconfig { joining, leaving, new_members: None, config_id: -1 };
        match self.0.call(request).await? {
            Response::Data(data, _) => Ok(String::from_utf8(data.unwrap_or_default().to_vec()).unwrap()),
            other => panic!("not a configuration: {other:?}"),
        }
    }
}
