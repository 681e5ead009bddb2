//! The members of a cluster are changed while clients use it.

use rowlock_client::{Acl, CreateMode, Error, ErrorCode, Members, NodeId, Reconfig, Znode};
use rowlock_testkit::{Cluster, NodeConfig};

use crate::support::within;

/// Lets in `super:test` as the superuser.
fn with_superuser(config: &mut NodeConfig) {
    config.client.super_digest = Some("super:D/InIHSb7yEEbrWz8b9l71RjZJU=".to_owned());
}

fn line_of<'a>(config: &'a str, server: &str) -> Option<&'a str> {
    config.lines().find(|line| line.starts_with(server))
}

fn version(config: &str) -> i64 {
    let version = config.lines().find_map(|line| line.strip_prefix("version=")).unwrap();
    i64::from_str_radix(version, 16).unwrap()
}

#[tokio::test]
async fn a_superuser_takes_a_member_out_and_in_again_as_an_observer_while_others_write() {
    let cluster = Cluster::start_with(3, with_superuser).await;
    let nobody = cluster.client().await;
    let out = Reconfig::new().leave(NodeId(3));
    assert_eq!(nobody.reconfig(&out).await, Err(Error::Rejected(ErrorCode::NoAuth)));

    // Node 2 stops serving once it is no member, so the operator stays with node 0.
    let only_first = |config: rowlock_client::ClientBuilder| config.endpoints(cluster.endpoint(0));
    let operator = cluster.client_with(|config| only_first(config).auth("digest", &b"super:test"[..])).await;
    let before = operator.get("/zookeeper/config").await.unwrap().data;
    let before = String::from_utf8(before.unwrap().to_vec()).unwrap();
    let third = line_of(&before, "server.3=").unwrap();

    let after = within("a removal", operator.reconfig(&out)).await.unwrap().config;
    assert_eq!(line_of(&after, "server.3="), None, "{after}");
    let outdated = Reconfig::new().join(third).if_version(version(&before));
    assert_eq!(operator.reconfig(&outdated).await, Err(Error::Rejected(ErrorCode::BadVersion)));
    operator.create("/meanwhile", None, CreateMode::Persistent, Acl::open()).await.unwrap();

    let observer = third.replace("participant", "observer");
    let back = Reconfig::new().join(&observer).if_version(version(&after));
    let Members { config: last, stat } = within("an addition", operator.reconfig(&back)).await.unwrap();
    assert_eq!(line_of(&last, "server.3="), Some(observer.as_str()));
    let shown = operator.get("/zookeeper/config").await.unwrap();
    assert_eq!(shown, Znode { data: Some(last.into()), stat });
}
