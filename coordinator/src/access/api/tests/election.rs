//! Elections.

use rowlock_proto::Request;
use rowlock_proto::request::SetData;
use rowlock_proto::{Version, Zxid, path};
use rowlock_state::command::Command;

use super::*;
use crate::access::api::call::Call;

async fn campaign(api: &Api, secret: &Secret, id: &str, wait_ms: u64) -> QueuePosition {
    let wanted = AcquireOptions { label: format!("host {id}"), ..wanted(secret, id, wait_ms) };
    api.campaign(&caller(), &scheduler(), wanted).await.map(only).unwrap()
}

fn scheduler() -> LockName {
    election("scheduler").unwrap()
}

async fn leader(api: &Api, after: Option<Zxid>, wait_ms: u64) -> Led {
    api.leader(&caller(), &scheduler(), (after, Duration::from_millis(wait_ms))).await.unwrap()
}

fn value(led: &Led) -> Option<&str> {
    led.leader.as_ref().map(|(_, value)| value.as_str())
}

#[tokio::test]
async fn a_poll_for_the_leader_ends_when_another_one_leads_and_else_when_its_time_is_over() {
    let node = Node::start().await;
    let api = Arc::new(node.api());
    let (one, two) = (open(&api).await, open(&api).await);
    assert_eq!(leader(&api, None, 0).await, Led { zxid: Zxid(0), leader: None });
    let QueuePosition::Held(first) = campaign(&api, &one, "1", 0).await else { panic!("nobody leads") };
    assert!(first.path.starts_with("/locks/@elections/scheduler/"), "{}", first.path);
    assert!(matches!(campaign(&api, &two, "2", 10).await, QueuePosition::Waiting { .. }));
    let led = leader(&api, Some(Zxid(0)), 60_000).await;
    assert_eq!((value(&led), led.zxid.0), (Some("host 1"), first.token.0));
    assert_eq!(leader(&api, Some(led.zxid), 30).await, led, "it still leads");
    let poll = spawn("polls", {
        let (api, after) = (api.clone(), led.zxid);
        async move { leader(&api, Some(after), 60_000).await }
    });
    while node.context.metrics.api_waits.get() == 0 {
        time::sleep(Duration::from_millis(1)).await;
    }
    let which = Which::Token(first.token);
    assert_eq!(api.release(&caller(), &scheduler(), (&one, &which)).await, Ok(true));
    assert_eq!(value(&poll.await.unwrap()), Some("host 2"));
    assert!(election("").is_err() && election(&"x".repeat(513)).is_err());
    assert_eq!(election("a/b").unwrap().path(), "/locks/@elections/a/b");
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn a_candidate_makes_way_for_the_successor_that_the_leader_has_named() {
    let node = Node::start().await;
    let api = node.api();
    let (one, two, three) = (open(&api).await, open(&api).await, open(&api).await);
    let QueuePosition::Held(first) = campaign(&api, &one, "1", 0).await else { panic!("nobody leads") };
    campaign(&api, &two, "2", 10).await;
    let QueuePosition::Waiting { claim: third, .. } = campaign(&api, &three, "3", 10).await else {
        panic!("it waits")
    };
    let note = format!("successor={}", path::name(&third.path));
    let set = SetData { path: scheduler().path().to_owned(), data: Some(note.into()), version: Version::ANY };
    Call::new(&api, &caller()).act(&one, Command::Client(Request::SetData(set))).await.unwrap();
    let which = Which::Token(first.token);
    assert_eq!(api.release(&caller(), &scheduler(), (&one, &which)).await, Ok(true));
    assert_eq!(leader(&api, None, 0).await.leader, None, "the lead is on its way");
    assert_eq!(campaign(&api, &two, "2", 10).await, QueuePosition::Absent);
    assert!(matches!(campaign(&api, &three, "3", 10).await, QueuePosition::Held(claim) if claim == third));
    assert_eq!(value(&leader(&api, None, 0).await), Some("host 3"));
    drop(api);
    node.stop().await;
}
