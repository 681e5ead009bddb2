//! Terraform's and OpenTofu's `lock_address` at nodes of their own processes.

use serde_json::{Value, json};

use crate::support::cluster::{Cluster, FAST};
use crate::support::http::request;
use crate::support::{eventually, secs};

const PATH: &str = "/v1/terraform/prod";

/// What OpenTofu 1.8 sends.
fn info(id: &str) -> String {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": "ann@build-7", "Version": "1.8.0",
        "Created": "2026-11-25T15:04:05.123456789Z", "Path": "",
    })
    .to_string()
}

async fn ask(api: &str, method: &str, body: &str) -> (u16, Value) {
    let lines = "Content-Type: application/json\r\n";
    request(api, &format!("{method} {PATH}"), lines, body).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_state_outlives_its_leader_and_is_given_back_through_another_node() {
    const ID: &str = "3f1c5d0e-8a6b-4d7f-9c2e-1b0a9f8e7d6c";
    let mut it = Cluster::start_with_api(3, FAST).await;
    let leader = it.leader().await;
    let others: Vec<u64> = it.ids().into_iter().filter(|id| *id != leader).collect();
    let (code, held) = ask(it.api(leader), "LOCK", &info(ID)).await;
    assert_eq!((code, &held["state"]), (200, &json!("held")), "{held}");
    it.kill(leader);
    let other = it.api(others[0]).to_owned();
    let taken = async || {
        let answer = ask(&other, "LOCK", &info("other")).await;
        (answer.0 != 503).then_some(answer)
    };
    let (code, by) = eventually("an answer", secs(60), taken).await;
    assert_eq!((code, by.to_string()), (423, serde_json::from_str::<Value>(&info(ID)).unwrap().to_string()));
    assert_eq!(ask(&other, "POST", &info(ID)).await, (200, held.clone()), "the same ID finds its lock");
    let (_, queue) = request(&other, "GET /v1/queue?lock=/locks/@terraform/prod", "", "").await.unwrap();
    assert_eq!(queue["holders"][0]["token"], held["token"], "{queue}");
    assert!(queue["holders"][0]["label"].as_str().unwrap().contains("ann@build-7"), "{queue}");
    let second = it.api(others[1]).to_owned();
    for released in [true, false] {
        assert_eq!(ask(&second, "UNLOCK", &info(ID)).await, (200, json!({ "released": released })));
    }
    let (code, next) = ask(&other, "LOCK", &info("other")).await;
    let number = |held: &Value| held["token"].as_str().unwrap().parse::<i64>().unwrap();
    assert!(code == 200 && number(&next) > number(&held), "{next}");
}
