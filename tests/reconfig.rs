//! The superuser changes the members of a running cluster as with ZooKeeper: a learner becomes a voter, the
//! leader is removed, and what would have no quorum is refused with nothing changed.

use rowlock_client::{Acl, CreateMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::{eventually, wire};

const SUPER: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";
const NEW_CONFIG_NO_QUORUM: i32 = -13;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_becomes_a_voter_the_leader_leaves_and_nothing_without_a_quorum_is_begun() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    cluster.add_learner(4);
    cluster.start_node(4);
    cluster.wait_until_serves(4).await;
    let leader = cluster.leader().await;
    let mut superuser = Superuser::connect(cluster.endpoint(4)).await;

    let nobody = "server.7=127.0.0.1:1:1;1,server.8=127.0.0.1:2:2;2,server.9=127.0.0.1:3:3;3,server.10=127.0.0.1:4:4;4";
    assert_eq!(superuser.reconfig(Some(nobody), None).await, Err(NEW_CONFIG_NO_QUORUM));

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
struct Superuser {
    stream: TcpStream,
    xid: i32,
}

fn text(value: Option<&str>) -> Vec<u8> {
    match value {
        None => (-1i32).to_be_bytes().to_vec(),
        Some(value) => wire::frame(value.as_bytes()),
    }
}

impl Superuser {
    async fn connect(addr: &str) -> Superuser {
        let mut superuser = Superuser { stream: wire::attach(addr, 10_000).await, xid: 0 };
        let mut auth = [(-4i32).to_be_bytes(), 100i32.to_be_bytes(), 0i32.to_be_bytes()].concat();
        auth.extend(text(Some("digest")));
        auth.extend(text(Some("super:test")));
        superuser.exchange(&wire::frame(&auth)).await.unwrap();
        superuser
    }

    async fn config(&mut self) -> String {
        self.xid += 1;
        let asked = wire::get_data(self.xid, "/zookeeper/config");
        data(&self.exchange(&asked).await.unwrap())
    }

    async fn reconfig(&mut self, joining: Option<&str>, leaving: Option<&str>) -> Result<String, i32> {
        self.xid += 1;
        let mut body = [self.xid.to_be_bytes(), 16i32.to_be_bytes()].concat();
        for list in [joining, leaving, None] {
            body.extend(text(list));
        }
        body.extend((-1i64).to_be_bytes());
        self.exchange(&wire::frame(&body)).await.map(|body| data(&body))
    }

    /// The body of the reply, or its error.
    async fn exchange(&mut self, frame: &[u8]) -> Result<Vec<u8>, i32> {
        self.stream.write_all(frame).await.unwrap();
        let mut reply = vec![0; self.stream.read_i32().await.unwrap() as usize];
        let read = self.stream.read_exact(&mut reply);
        tokio::time::timeout(SERVING, read).await.expect("an answer in time").unwrap();
        let (header, body) = reply.split_at(16);
        match i32::from_be_bytes(header[12..].try_into().unwrap()) {
            0 => Ok(body.to_vec()),
            code => Err(code),
        }
    }
}

fn data(body: &[u8]) -> String {
    let len = i32::from_be_bytes(body[..4].try_into().unwrap()) as usize;
    String::from_utf8(body[4..4 + len].to_vec()).unwrap()
}
