//! Shares of the session slots: one address cannot use up all slots.

use std::net::IpAddr;

use rowlock_proto::acl::Id;

use super::state_lock::info;
use super::*;

fn from(last: u8) -> Caller {
    let ip = IpAddr::from([10, 0, 0, last]);
    let identities = [Id { scheme: "ip".to_owned(), id: ip.to_string() }].into();
    Caller { address: SocketAddr::from((ip, 7)), identities, trace: None }
}

async fn node() -> Node {
    let mut config = config();
    config.limits.sessions = 100;
    Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await
}

#[tokio::test]
async fn state_locks_of_one_address_leave_slots_for_others() {
    let node = node().await;
    let api = node.api();
    let mut held = 0;
    for n in 0..100 {
        let name = state_lock(&format!("state-{n}")).unwrap();
        match api.lock_state(&from(1), &name, &info("greedy")).await {
            Ok(StateLock::Held(_)) => held += 1,
            Err(Refusal::Full(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(held, 20, "four fifths of a quarter");
    let name = state_lock("prod").unwrap();
    let prod = api.lock_state(&from(2), &name, &info("ann")).await;
    assert!(matches!(prod, Ok(StateLock::Held(_))), "{prod:?}");
    for _ in 0..60 {
        api.open(&from(2), 10_000).await.unwrap();
    }
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn sessions_of_one_address_leave_slots_and_operators_still_act() {
    let node = node().await;
    let api = node.api();
    let mut greedy = Vec::new();
    for _ in 0..200 {
        match api.open(&from(1), 10_000).await {
            Ok(opened) => greedy.push(opened.secret),
            Err(Refusal::Full(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(greedy.len(), 80);
    assert_eq!(node.context.metrics.sessions_refused_total.get(), 120);
    let token = token(&api, &greedy[0], "a").await;
    assert_eq!(api.force(&from(1), &lock(), token).await, Ok(true), "only operators may ask for this");
    let path = || "/a".parse::<ZnodePath>().unwrap();
    let write = || (Change::Delete { version: rowlock_proto::Version::ANY }, By::default());
    assert_eq!(api.change(&from(2), &path(), write()).await, Err(Refusal::NoZnode));
    assert!(matches!(api.change(&from(1), &path(), write()).await, Err(Refusal::Full(_))));
    let super_id = Id { scheme: "super".to_owned(), id: String::new() };
    let operator = Caller { identities: [super_id].into(), ..from(1) };
    assert_eq!(api.change(&operator, &path(), write()).await, Err(Refusal::NoZnode));
    drop(api);
    node.stop().await;
}
