//! Locks by HTTP, at nodes of their own processes: the cases of `coordinator/testdata/rest` that need no node
//! inside a test, and tests with several clients, restarts and files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rowlock_frames::rest::{Client, Tcp};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::run;
use crate::support::http::{get, post};
use crate::support::{eventually, secs};

const LOCK: &str = "/v1/locks/ci/deploy";
const CLIENTS: usize = 4;
const ROUNDS: usize = 3;

async fn lease(api: &str, ttl_ms: u32) -> Value {
    let (code, lease) = post(api, "/v1/leases", &json!({ "ttl_ms": ttl_ms })).await.unwrap();
    assert_eq!(code, 201, "{lease}");
    lease
}

/// Sends it through one node after another until one of them has given an answer, and then three times in
/// all, as a client does whose answers get lost. Gives the last answer.
async fn thrice(apis: &[String], path: &str, document: &Value) -> (u16, Value) {
    let mut last = None;
    for api in apis.iter().cycle().take(apis.len().max(3)) {
        let answer = async || post(api, path, document).await.filter(|(code, _)| *code < 500);
        last = Some(eventually("an answer", secs(60), answer).await);
    }
    last.unwrap()
}

/// Takes the lock some times, each by requests that are repeated through all nodes. Gives the tokens.
async fn contend(apis: Vec<String>, client: usize) -> Vec<i64> {
    let lease = lease(&apis[client % apis.len()], 40_000).await;
    let mut tokens = Vec::new();
    for round in 0..ROUNDS {
        let id = format!("{client}-{round}");
        let acquire =
            json!({ "secret": lease["secret"], "request_id": id, "wait_ms": 1000, "label": "test" });
        let token = loop {
            let (code, standing) = thrice(&apis, &format!("{LOCK}/acquire"), &acquire).await;
            match standing["state"].as_str() {
                Some("held") => break standing["token"].as_str().unwrap().to_owned(),
                Some("waiting") => assert_eq!(code, 202, "{standing}"),
                _ => panic!("{code} {standing}"),
            }
        };
        let (_, held) = post(&apis[0], &format!("{LOCK}/verify"), &json!({ "token": token })).await.unwrap();
        assert_eq!(held, json!({ "held": true }), "nobody else has it");
        tokens.push(token.parse().unwrap());
        let release = json!({ "secret": lease["secret"], "token": token });
        let (code, released) = thrice(&apis, &format!("{LOCK}/release"), &release).await;
        assert_eq!((code, released), (200, json!({ "released": true })), "as the first one was told");
    }
    tokens
}

/// Returns a client for steps as text. The cluster's first node has the operators' listener of the client.
fn client(it: &Cluster, tokens: BTreeMap<String, String>) -> Client<Tcp> {
    let apis = it.ids().into_iter().map(|id| it.api(id).to_owned());
    Client::new(Tcp([it.http(1).to_owned()].into_iter().chain(apis).collect()), tokens)
}

/// Runs a step and checks a part of the answer.
async fn expect(client: &mut Client<Tcp>, step: &str, wanted: &str) {
    let answer = client.run(step).await;
    assert!(answer.contains(wanted), "{step}: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_come_three_times_through_all_nodes_take_effect_once() {
    let it = Cluster::start_with_api(3, FAST).await;
    let apis: Vec<String> = it.ids().into_iter().map(|id| it.api(id).to_owned()).collect();
    let tasks: Vec<_> = (0..CLIENTS).map(|n| tokio::spawn(contend(apis.clone(), n))).collect();
    let mut all = Vec::new();
    for task in tasks {
        let tokens = task.await.unwrap();
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise: {tokens:?}");
        all.extend(tokens);
    }
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), CLIENTS * ROUNDS, "no token twice: {all:?}");
    let client = it.client().await;
    let left = client.get_children("/locks/ci/deploy").await.map(|children| children.names);
    assert!(left.as_ref().is_ok_and(Vec::is_empty) || left.is_err(), "nothing is left: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_falls_silent_passes_its_lock_on_to_our_client_and_that_one_to_a_lease() {
    let it = Cluster::start_with_api(3, FAST).await;
    let mut http = client(&it, BTreeMap::new());
    expect(&mut http, "lease brief 2000", "201").await;
    expect(&mut http, &format!("brief node2 POST {LOCK}/acquire"), "$token1").await;
    let native = it.client().await;
    let mutex = native.mutex_at("/locks/ci/deploy");
    let guard = tokio::time::timeout(secs(60), mutex.lock()).await.expect("the lease has ended").unwrap();
    expect(&mut http, "node3 POST /v1/leases/$brief.id/keepalive {\"secret\":\"$brief\"}", "404").await;
    expect(&mut http, "lease next", "201").await;
    let waits =
        format!("begin waits next node2 POST {LOCK}/acquire {{\"request_id\":\"b\",\"wait_ms\":15000}}");
    expect(&mut http, &waits, "ok").await;
    expect(&mut http, "until \"waiter_count\":1 in GET /v1/queue?lock=/locks/ci/deploy", "ok").await;
    // The queue names the token between the two leases' tokens: a smaller one would be late.
    let queue = http.run("GET /v1/queue?lock=/locks/ci/deploy").await;
    assert!(queue.contains("$token2") && http.value("token2") == Some(&guard.token().to_string()), "{queue}");
    guard.release().await.unwrap();
    expect(&mut http, "end waits", "$token3").await;
}

const PREFER: &str = "\nPrefer: leader";

/// Returns the leader that the answer to a write through this node names.
async fn named(it: &Cluster, node: u64, lines: &str) -> Option<String> {
    let answer = client(it, BTreeMap::new()).run(&format!("node{node} POST /v1/leases{lines}")).await;
    assert!(answer.starts_with("201") || answer.starts_with("503"), "{answer}");
    answer.lines().find_map(|line| line.strip_prefix("rowlock-leader: ")).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_names_the_leader_with_room_to_clients_that_prefer_it_and_the_next_one_after_its_death() {
    let mut it = Cluster::start_with_api(3, FAST).await;
    let old = it.leader().await;
    let others: Vec<u64> = it.ids().into_iter().filter(|id| *id != old).collect();
    for id in &others {
        let names = || async { named(&it, *id, PREFER).await.filter(|leader| leader == it.api(old)) };
        eventually("the leader's address", secs(30), names).await;
        assert_eq!(named(&it, *id, "").await, None, "it did not ask");
    }
    assert_eq!(named(&it, old, PREFER).await, None, "it is here");
    it.kill(old);
    let new = it.leader().await;
    let follower = others.into_iter().find(|id| *id != new).unwrap();
    let names = || async { named(&it, follower, PREFER).await.filter(|leader| leader == it.api(new)) };
    eventually("the new leader's address", secs(30), names).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_election_by_http_is_the_one_of_our_client() {
    let it = Cluster::start_with_api(3, FAST).await;
    let (mut http, native) = (client(&it, BTreeMap::new()), it.client().await);
    let leadership = native.election("a/b").campaign("native").await.unwrap();
    let leader = "node2 GET /v1/elections/a%2Fb/leader";
    expect(&mut http, leader, "\"token\":\"$token1\",\"value\":\"native\"").await;
    assert_eq!(http.value("token1"), Some(&leadership.token().to_string()));
    leadership.set_value("changed").await.unwrap();
    expect(&mut http, &format!("until \"value\":\"changed\" in {leader}"), "ok").await;
    expect(&mut http, "lease rest", "201").await;
    let campaign = "{\"request_id\":\"a\",\"wait_ms\":15000,\"value\":\"rest\"}";
    expect(&mut http, &format!("begin waits rest node3 POST /v1/elections/a%2Fb/campaign {campaign}"), "ok")
        .await;
    let candidates = async || {
        let candidates = native.election("a/b").candidates().await.unwrap();
        (candidates.len() == 2).then_some(candidates)
    };
    eventually("two candidates", secs(20), candidates).await;
    leadership.resign().await.unwrap();
    expect(&mut http, "end waits", "$token2").await;
    let found = native.election("a/b").leader().await.unwrap().unwrap();
    assert_eq!((found.value.as_str(), Some(&found.token.to_string())), ("rest", http.value("token2")));
}

/// Turns cases for a node inside a test into comments, so that the numbers of lines stay.
fn for_real_nodes(text: &str) -> String {
    let is_inside = |case: &str| case.lines().any(|line| line == "node" || line.starts_with("node "));
    let comment = |line: &str| if line.is_empty() { String::new() } else { format!("# {line}") };
    let mut kept = Vec::new();
    for (at, part) in text.split("\n== ").enumerate() {
        let case = if at == 0 { part.to_owned() } else { format!("== {part}") };
        let is_inside = is_inside(&case);
        kept.push(if is_inside { case.lines().map(comment).collect::<Vec<_>>().join("\n") } else { case });
    }
    kept.join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_of_the_http_api_hold_on_real_nodes() {
    let it = Cluster::start_with_api(3, FAST).await;
    let copies = tempfile::tempdir().unwrap();
    let (mut differences, mut cases) = (Vec::new(), 0);
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../coordinator/testdata/rest"));
    for file in rowlock_stories::files(folder) {
        let copy = copies.path().join(file.file_name().unwrap());
        fs::write(&copy, for_real_nodes(&fs::read_to_string(&file).unwrap())).unwrap();
        let mut present: Option<Client<Tcp>> = None;
        let mut answer = async |paragraph: &str| {
            if paragraph.starts_with("== ") {
                cases += 1;
                if let Some(ended) = present.replace(client(&it, BTreeMap::new())) {
                    ended.finish().await;
                }
                return String::new();
            }
            present.as_mut().expect("a case has a title").run(paragraph).await
        };
        let play = || rowlock_stories::play(&copy, |text| Handle::current().block_on(answer(text)));
        differences.extend(tokio::task::block_in_place(play).err());
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(cases > 30, "{cases} cases");
}

/// Takes the lock and gives it back.
async fn one_round(client: &mut Client<Tcp>, id: &str) {
    let acquire = format!("a POST {LOCK}/acquire {{\"request_id\":\"{id}\"}}");
    let release = acquire.replace("acquire", "release");
    assert!(client.run(&acquire).await.contains("\"held\""), "{id}");
    assert_eq!(client.run(&release).await, "200 {\"released\":true}");
}

/// Returns the kinds of events.
fn kinds(events: &str) -> Vec<&str> {
    events.lines().filter_map(|line| line.split(' ').next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_at_another_node_and_behind_a_restart_without_a_gap() {
    const ROUND: [&str; 3] = ["requested", "granted", "released"];
    let mut it = Cluster::start_with_api(3, FAST).await;
    let mut client = client(&it, BTreeMap::new());
    assert_eq!(client.run("lease a").await, "201 40000");
    let open = |name: &str, node: u64, last: &str| {
        format!("open {name} node{node} GET /v1/watch?lock=/locks/ci/deploy{last}")
    };
    client.run(&open("first", 2, "")).await;
    one_round(&mut client, "a").await;
    assert_eq!(kinds(&client.run("events first 3").await), ROUND);
    client.run("close first").await;
    one_round(&mut client, "b").await;
    // Another node, which has seen the same.
    client.run(&open("second", 3, "\nLast-Event-ID: $first")).await;
    assert_eq!(kinds(&client.run("events second 3").await), ROUND);
    one_round(&mut client, "c").await;
    assert_eq!(kinds(&client.run("events second 3").await), ROUND);
    // A node that stops ends its streams at once, and the history is there again when it is back.
    let begun = std::time::Instant::now();
    it.restart(3).await;
    assert!(begun.elapsed() < secs(30), "{:?}", begun.elapsed());
    it.wait_until_serves(3).await;
    one_round(&mut client, "d").await;
    client.run(&open("third", 3, "\nLast-Event-ID: $second")).await;
    assert_eq!(kinds(&client.run("events third 3").await), ROUND);
}

/// Starts the node again with tokens: those of a client for locks, and of an operator.
async fn require_tokens(it: &mut Cluster, audit: &str) -> BTreeMap<String, String> {
    it.stop(1).await;
    it.change_settings(&format!("{FAST}{audit}[http]\ntoken_file = \"tokens\"\n"));
    let tokens = [("ci", "lock:/locks/*"), ("boss", "operator")].map(|(name, role)| {
        let made = run(&it.folder, &["token", "new", name, "--role", role, "--file", "tokens"]);
        assert_eq!(made.code, 0, "{}", made.err);
        (name.to_owned(), made.out.trim().to_owned())
    });
    it.start_node(1);
    tokens.into()
}

/// Returns operation, result and detail of the operators' requests in an audit log.
fn audited(file: &Path) -> Vec<[String; 3]> {
    let lines = fs::read_to_string(file).unwrap_or_default();
    let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let admin = records.filter(|record| record["event"] == "admin");
    admin
        .map(|it| ["op", "result", "detail"].map(|of| it[of].as_str().unwrap_or_default().to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_actions_by_http_are_audited_and_in_the_history() {
    let audit = "[audit]\nfile = \"audit.log\"\n";
    let mut it = Cluster::start_with_api(1, &format!("{FAST}{audit}")).await;
    let tokens = require_tokens(&mut it, audit).await;
    let mut http = client(&it, tokens);
    let acquire = |secret: &str, id: &str| {
        format!(
            "@ci POST {LOCK}/acquire {{\"secret\":\"${secret}\",\"request_id\":\"{id}\",\"label\":\"job 7\"}}"
        )
    };
    eventually("the node serves", secs(60), async || get(it.http(1), "/readyz").await).await;
    expect(&mut http, "@ci POST /v1/leases {\"ttl_ms\":4000}", "$secret1").await;
    expect(&mut http, &acquire("secret1", "a"), "$token1").await;
    let force = format!("@boss DELETE {LOCK}/holders/$token1");
    expect(&mut http, &force, "true").await;
    expect(&mut http, &force, "false").await;
    expect(&mut http, &acquire("secret1", "b"), "$token2").await;
    let question = "{\"reason\":\"hotfix\",\"label\":\"job 8\"}";
    expect(&mut http, &format!("@ci POST {LOCK}/ask {question}"), "\"asked\":1").await;
    let now = "{\"reason\":\"now\",\"within_ms\":1000}";
    expect(&mut http, &format!("until \"asked\":1 in @boss POST {LOCK}/ask {now}"), "ok").await;
    // A holder that goes on keeping its lease alive loses the lock all the same.
    let lost = format!("until \"gone\" in {}", acquire("secret1", "b"));
    expect(&mut http, &lost, "ok").await;
    expect(&mut http, "@ci POST /v1/leases", "$secret2").await;
    expect(&mut http, &acquire("secret2", "c"), "$token3").await;
    for ended in ["true", "false"] {
        expect(&mut http, "@boss DELETE /v1/sessions/$lease2", ended).await;
    }
    let history = "@boss GET /v1/history?lock=/locks/ci/deploy";
    for wanted in ["\"reason\":\"forced\"", "\"reason\":\"session-ended\"", "token:ci (job 8): hotfix"] {
        expect(&mut http, history, wanted).await;
    }
    let of = |op: &str, result: &str, all: &[[String; 3]]| {
        all.iter().find(|it| it[0] == op && it[1] == result).map(|it| it[2].clone())
    };
    let all_are_there = async || {
        let all = audited(&it.data(1).join("audit.log"));
        of("endSession", "NoSession", &all).map(|_| all)
    };
    let all = eventually("the records", secs(20), all_are_there).await;
    assert!(
        of("forceRelease", "ok", &all).is_some() && of("forceRelease", "NotHeld", &all).is_some(),
        "{all:?}"
    );
    assert_eq!(of("ask", "ok", &all).as_deref(), Some("within_ms=1000 reason=now"), "{all:?}");
    assert!(of("endSession", "ok", &all).is_some_and(|detail| detail.starts_with("session=0x")), "{all:?}");
}
