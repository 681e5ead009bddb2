//! Locks by HTTP, at nodes of their own processes.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::run;
use crate::support::http::{exchange, post, request};
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
    let brief = lease(it.api(1), 2_000).await;
    let acquire = json!({ "secret": brief["secret"], "request_id": "a", "wait_ms": 0 });
    let (code, first) = post(it.api(2), &format!("{LOCK}/acquire"), &acquire).await.unwrap();
    assert_eq!((code, &first["state"]), (200, &json!("held")), "{first}");
    let client = it.client().await;
    let mutex = client.mutex_at("/locks/ci/deploy");
    let guard = tokio::time::timeout(secs(60), mutex.lock()).await.expect("the lease has ended").unwrap();
    let first: i64 = first["token"].as_str().unwrap().parse().unwrap();
    assert!(guard.token().0 > first);
    let (code, _) =
        post(it.api(3), &keep_alive(&brief), &json!({ "secret": brief["secret"] })).await.unwrap();
    assert_eq!(code, 404, "the lease is over");
    let next = lease(it.api(3), 40_000).await;
    let acquire = json!({ "secret": next["secret"], "request_id": "b", "wait_ms": 15_000 });
    let api = it.api(2).to_owned();
    let waits = tokio::spawn(async move { post(&api, &format!("{LOCK}/acquire"), &acquire).await });
    let both = || async {
        client.get_children("/locks/ci/deploy").await.ok().filter(|places| places.names.len() == 2)
    };
    eventually("the lease waits", secs(10), both).await;
    let second = guard.token().0;
    guard.release().await.unwrap();
    let (_, held) = waits.await.unwrap().unwrap();
    assert_eq!(held["state"], "held", "{held}");
    assert!(held["token"].as_str().unwrap().parse::<i64>().unwrap() > second);
}

/// The leader that the answer to this write names.
async fn named(api: &str, lines: &str) -> Option<String> {
    let (head, _) = exchange(api, "POST /v1/leases", lines, "{}").await?;
    assert!(head.starts_with("HTTP/1.1 201") || head.starts_with("HTTP/1.1 503"), "{head}");
    head.lines().find_map(|line| line.strip_prefix("rowlock-leader: ")).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_names_the_leader_with_room_to_clients_that_prefer_it_and_the_next_one_after_its_death() {
    const PREFER: &str = "Prefer: leader\r\n";
    let mut it = Cluster::start_with_api(3, FAST).await;
    let old = it.leader().await;
    let others: Vec<u64> = it.ids().into_iter().filter(|id| *id != old).collect();
    for id in &others {
        let names = || async { named(it.api(*id), PREFER).await.filter(|leader| leader == it.api(old)) };
        eventually("the leader's address", secs(30), names).await;
        assert_eq!(named(it.api(*id), "").await, None, "it did not ask");
    }
    assert_eq!(named(it.api(old), PREFER).await, None, "it is here");
    it.kill(old);
    let new = it.leader().await;
    let follower = others.into_iter().find(|id| *id != new).unwrap();
    let names = || async { named(it.api(follower), PREFER).await.filter(|leader| leader == it.api(new)) };
    eventually("the new leader's address", secs(30), names).await;
}

fn keep_alive(lease: &Value) -> String {
    format!("/v1/leases/{}/keepalive", lease["lease"].as_str().unwrap())
}

/// Of a file, the documents that tell of this request.
fn audited(file: &std::path::Path, op: &str) -> Vec<Value> {
    let lines = std::fs::read_to_string(file).unwrap_or_default();
    let documents = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    documents.filter(|document| document["op"] == op).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_show_who_holds_and_an_operator_takes_the_lock_away_which_is_recorded() {
    let it = Cluster::start_with_api(1, &format!("{FAST}[audit]\nfile = \"audit.log\"\n")).await;
    let api = it.api(1);
    let lease = lease(api, 40_000).await;
    for lock in ["ci/deploy", "other"] {
        let acquire = json!({ "secret": lease["secret"], "request_id": "a", "label": "job 7" });
        let (_, held) = post(api, &format!("/v1/locks/{lock}/acquire"), &acquire).await.unwrap();
        assert_eq!(held["state"], "held", "{held}");
    }
    let get = async |path: &str| request(api, &format!("GET {path}"), "", "").await.unwrap();
    let (code, locks) = get("/v1/locks?prefix=/locks/ci/").await;
    assert_eq!((code, locks["locks"].as_array().unwrap().len()), (200, 1), "{locks}");
    assert_eq!(locks["locks"][0]["lock"], "/locks/ci/deploy");
    assert_eq!(get("/v1/locks").await.1["locks"].as_array().unwrap().len(), 2);
    assert_eq!(get("/v1/locks?prefix=ci").await.0, 400);
    let (_, queue) = get("/v1/queue?lock=/locks/ci/deploy").await;
    assert_eq!(queue["holders"][0]["label"], "job 7", "{queue}");
    assert_eq!(get("/v1/backup").await.0, 404, "that is no report for this listener");
    let token = queue["holders"][0]["token"].to_string();
    let holder = format!("DELETE {LOCK}/holders/{token}");
    for released in [true, false] {
        let answer = request(api, &holder, "", "").await.unwrap();
        assert_eq!(answer, (200, json!({ "released": released })));
    }
    let (_, held) = post(api, &format!("{LOCK}/verify"), &json!({ "token": token })).await.unwrap();
    assert_eq!(held, json!({ "held": false }));
    let recorded = async || {
        let found = audited(&it.data(1).join("audit.log"), "forceRelease");
        (found.len() == 2).then_some(found)
    };
    let recorded = eventually("two records", secs(20), recorded).await;
    assert_eq!((&recorded[0]["result"], &recorded[1]["result"]), (&json!("ok"), &json!("NotHeld")));
    assert_eq!(
        (&recorded[0]["paths"][0], &recorded[0]["event"]),
        (&json!("/locks/ci/deploy"), &json!("admin"))
    );
    let (_, history) = get("/v1/history?lock=/locks/ci/deploy").await;
    let last = history["entries"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["event"], &last["reason"]), (&json!("lost"), &json!("forced")), "{last}");
    assert_eq!(get("/v1/sessions").await.0, 200);
}

/// Starts the node again with tokens: those of a client for locks, and of an operator.
async fn close(it: &mut Cluster, audit: &str) -> [String; 2] {
    it.stop(1).await;
    it.change_settings(&format!("{FAST}{audit}[http]\ntoken_file = \"tokens\"\n"));
    let tokens = [("ci", "lock:/locks/*"), ("boss", "operator")].map(|(name, role)| {
        let made = run(&it.folder, &["token", "new", name, "--role", role, "--file", "tokens"]);
        assert_eq!(made.code, 0, "{}", made.err);
        format!("Authorization: Bearer {}\r\n", made.out.trim())
    });
    it.start_node(1);
    tokens
}

/// What asking for a lock is refused for, of a client that is no operator, and of one that is.
async fn refuses_questions(api: &str, [worker, boss]: &[String; 2]) {
    let ask = format!("POST {LOCK}/ask");
    for (token, document, code) in [
        (worker, json!({}), 400),
        (worker, json!({ "reason": "" }), 400),
        (worker, json!({ "reason": "r".repeat(257) }), 400),
        (worker, json!({ "reason": "r", "label": "l".repeat(101) }), 400),
        (worker, json!({ "reason": "r", "within_ms": 1_000 }), 403),
        (boss, json!({ "reason": "r", "within_ms": 999 }), 400),
    ] {
        assert_eq!(request(api, &ask, token, &document.to_string()).await.unwrap().0, code, "{document}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_by_http_learns_who_asks_and_only_an_operator_asks_with_a_deadline() {
    let audit = "[audit]\nfile = \"audit.log\"\n";
    let mut it = Cluster::start_with_api(1, &format!("{FAST}{audit}")).await;
    let ask = format!("{LOCK}/ask");
    let why = |reason: &str| json!({ "reason": reason, "label": "job 8" });
    assert_eq!(post(it.api(1), &ask, &why("r")).await.unwrap(), (200, json!({ "asked": 0, "holders": [] })));
    let [worker, boss] = close(&mut it, audit).await;
    let send = async |what: &str, token: &str, document: &Value| {
        request(it.api(1), what, token, &document.to_string()).await
    };
    let lease = async || {
        let answer = send("POST /v1/leases", &worker, &json!({ "ttl_ms": 4_000 })).await;
        answer.filter(|(code, _)| *code == 201).map(|(_, lease)| lease)
    };
    let lease = eventually("the node serves", secs(60), lease).await;
    let shown = json!({ "secret": lease["secret"], "request_id": "a", "label": "job 7" });
    let acquire = format!("POST {LOCK}/acquire");
    let (_, held) = send(&acquire, &worker, &shown).await.unwrap();
    assert_eq!((&held["state"], &held["asked"]), (&json!("held"), &Value::Null), "{held}");
    let ask = format!("POST {ask}");
    refuses_questions(it.api(1), &[worker.clone(), boss.clone()]).await;
    let (code, asked) = send(&ask, &worker, &why("hotfix")).await.unwrap();
    assert_eq!((code, &asked["asked"]), (200, &json!(1)), "{asked}");
    assert_eq!(
        (&asked["holders"][0]["token"], &asked["holders"][0]["label"]),
        (&held["token"], &json!("job 7"))
    );
    assert_eq!(send(&ask, &worker, &why("again")).await.unwrap().0, 503, "once a second");
    let alive = async || {
        let shown = json!({ "secret": lease["secret"] });
        send(&format!("POST {}", keep_alive(&lease)), &worker, &shown).await.unwrap().1
    };
    let asked = &alive().await["asked"][0];
    assert_eq!(
        (&asked["lock"], &asked["token"], &asked["reason"], &asked["by"], &asked["revoked_in_ms"]),
        (
            &json!("/locks/ci/deploy"),
            &held["token"],
            &json!("hotfix"),
            &json!("token:ci (job 8)"),
            &Value::Null
        ),
        "{asked}"
    );
    let now = json!({ "reason": "now", "within_ms": 1_000 });
    let with_deadline =
        async || send(&ask, &boss, &now).await.filter(|(code, _)| *code == 200).map(|(_, asked)| asked);
    eventually("a second is over", secs(20), with_deadline).await;
    let (_, again) = send(&acquire, &worker, &shown).await.unwrap();
    let asked = &again["asked"][0];
    assert_eq!((&asked["reason"], &asked["by"]), (&json!("now"), &json!("token:boss")), "{again}");
    assert!(asked["revoked_in_ms"].as_u64().unwrap() <= 1_000, "{asked}");
    let queue = "GET /v1/queue?lock=/locks/ci/deploy";
    let (_, shown) = send(queue, &worker, &json!({})).await.unwrap();
    assert_eq!(shown["holders"][0]["asked"]["reason"], "now", "{shown}");
    let revoked = async || {
        // A holder that goes on keeping its lease alive.
        alive().await;
        let (_, shown) = send(queue, &worker, &json!({})).await.unwrap();
        (shown["holder_count"] == 0).then_some(())
    };
    eventually("the lock is taken away", secs(30), revoked).await;
    let events = send("GET /v1/history?lock=/locks/ci/deploy", &boss, &json!({})).await.unwrap().1;
    let events = events["entries"].as_array().unwrap().iter();
    let seen: Vec<_> = events.map(|it| (it["event"].as_str().unwrap(), &it["question"])).collect();
    assert!(seen.contains(&("asked", &json!("token:ci (job 8): hotfix"))), "{seen:?}");
    let recorded = audited(&it.data(1).join("audit.log"), "ask");
    let detail = json!("within_ms=1000 reason=now");
    assert!(recorded.iter().any(|it| it["detail"] == detail && it["result"] == "ok"), "{recorded:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_a_session_by_http_and_its_lock_passes_on_and_nobody_else_may() {
    let audit = "[audit]\nfile = \"audit.log\"\n";
    let mut it = Cluster::start_with_api(1, &format!("{FAST}{audit}")).await;
    let end = "DELETE /v1/sessions/0x100000000000001";
    let refused = request(it.api(1), end, "", "").await.unwrap();
    assert_eq!(refused.0, 403, "whoever reaches an open listener has proven nothing: {}", refused.1);
    let [worker, boss] = close(&mut it, audit).await;
    let ask = async |what: &str, token: &str, document: &Value| {
        request(it.api(1), what, token, &document.to_string()).await
    };
    let lease = async || {
        let answer = ask("POST /v1/leases", &worker, &json!({ "ttl_ms": 40_000 })).await;
        answer.filter(|(code, _)| *code == 201).map(|(_, lease)| lease)
    };
    let silent = eventually("the node serves", secs(60), lease).await;
    let next = lease().await.unwrap();
    let acquire = async |lease: &Value, wait: u32| {
        let document = json!({ "secret": lease["secret"], "request_id": "a", "wait_ms": wait });
        ask(&format!("POST {LOCK}/acquire"), &worker, &document).await.unwrap().1["state"].clone()
    };
    assert_eq!(acquire(&silent, 0).await, "held");
    assert_eq!(acquire(&next, 1).await, "waiting");
    let id = silent["lease"].as_str().unwrap();
    let end = format!("DELETE /v1/sessions/{id}");
    assert_eq!(ask(&end, &worker, &json!({})).await.unwrap().0, 403, "that is for operators");
    for ended in [true, false] {
        assert_eq!(ask(&end, &boss, &json!({})).await.unwrap(), (200, json!({ "ended": ended })));
    }
    assert_eq!(acquire(&next, 1).await, "held", "it was next");
    let (shown, again) = (json!({ "secret": silent["secret"] }), format!("POST {}", keep_alive(&silent)));
    assert_eq!(ask(&again, &worker, &shown).await.unwrap().0, 404, "its lease is over");
    assert_eq!(ask("DELETE /v1/sessions/mine", &boss, &json!({})).await.unwrap().0, 400);
    let recorded = async || {
        let found = audited(&it.data(1).join("audit.log"), "endSession");
        (found.len() == 2).then_some(found)
    };
    let recorded = eventually("two records", secs(20), recorded).await;
    assert_eq!((&recorded[0]["result"], &recorded[1]["result"]), (&json!("ok"), &json!("NoSession")));
    assert_eq!(
        (&recorded[0]["event"], &recorded[0]["detail"]),
        (&json!("admin"), &json!(format!("session={id}")))
    );
    let (_, history) = ask(&format!("GET /v1/history?session={id}"), &boss, &json!({})).await.unwrap();
    let last = history["entries"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["event"], &last["reason"]), (&json!("lost"), &json!("session-ended")), "{last}");
}

/// A stream of server-sent events: what has come of it.
struct Stream {
    stream: tokio::net::TcpStream,
    text: String,
}

impl Stream {
    async fn begin(api: &str, query: &str, last: Option<&str>) -> Stream {
        let mut stream = tokio::net::TcpStream::connect(api).await.unwrap();
        let last = last.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        let head = format!("GET /v1/watch{query} HTTP/1.1\r\nHost: {api}\r\n{last}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut it = Stream { stream, text: String::new() };
        it.read_until(|text| text.contains("retry: 1000\n")).await;
        it
    }

    async fn read_until(&mut self, is_there: impl Fn(&str) -> bool) {
        let read = async {
            while !is_there(&self.text) {
                let mut piece = [0; 4_096];
                let len = self.stream.read(&mut piece).await.unwrap();
                assert!(len > 0, "the stream has ended: {}", self.text);
                self.text.push_str(std::str::from_utf8(&piece[..len]).unwrap());
            }
        };
        let read = tokio::time::timeout(secs(30), read).await;
        assert!(read.is_ok(), "{}", self.text);
    }

    /// Waits for this number of events. Returns their names and the last id.
    async fn events(&mut self, count: usize) -> (Vec<String>, String) {
        self.read_until(|text| text.matches("\ndata: ").count() >= count && text.ends_with("\n\r\n")).await;
        let after = |prefix: &str| -> Vec<String> {
            self.text.lines().filter_map(|line| line.strip_prefix(prefix)).map(str::to_owned).collect()
        };
        (after("event: "), after("id: ").pop().unwrap())
    }
}

/// Takes the lock and gives it back.
async fn one_round(api: &str, secret: &Value, id: &str) {
    let acquire = json!({ "secret": secret, "request_id": id });
    let (_, held) = post(api, &format!("{LOCK}/acquire"), &acquire).await.unwrap();
    let release = json!({ "secret": secret, "token": held["token"] });
    let (code, _) = post(api, &format!("{LOCK}/release"), &release).await.unwrap();
    assert_eq!(code, 200, "{held}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_at_another_node_and_behind_a_restart_without_a_gap() {
    const ROUND: [&str; 3] = ["requested", "granted", "released"];
    let mut it = Cluster::start_with_api(3, FAST).await;
    let lease = lease(it.api(1), 40_000).await;
    let query = "?lock=/locks/ci/deploy";
    let mut first = Stream::begin(it.api(2), query, None).await;
    one_round(it.api(1), &lease["secret"], "a").await;
    let (names, last) = first.events(3).await;
    assert_eq!(names, ROUND);
    drop(first);
    one_round(it.api(1), &lease["secret"], "b").await;
    // Another node, which has seen the same.
    let mut second = Stream::begin(it.api(3), query, Some(&last)).await;
    let (names, last) = second.events(3).await;
    assert_eq!(names, ROUND, "what happened meanwhile, once");
    one_round(it.api(1), &lease["secret"], "c").await;
    let (names, next) = second.events(6).await;
    assert_eq!(names[3..], ROUND);
    assert!(next.parse::<i64>().unwrap() > last.parse().unwrap());
    // A node that stops ends its streams at once, and the history is there again when it is back.
    let begun = std::time::Instant::now();
    it.restart(3).await;
    assert!(begun.elapsed() < secs(30), "{:?}", begun.elapsed());
    it.wait_until_serves(3).await;
    one_round(it.api(1), &lease["secret"], "d").await;
    let mut third = Stream::begin(it.api(3), query, Some(&next)).await;
    let (names, _) = third.events(3).await;
    assert_eq!(names, ROUND, "{}", third.text);
    let wrong = request(it.api(1), "GET /v1/watch?lock=/a&prefix=/b", "", "").await.unwrap();
    assert_eq!(wrong.0, 400, "{wrong:?}");
    let wrong = request(it.api(1), "GET /v1/watch", "Last-Event-ID: x\r\n", "").await.unwrap();
    assert_eq!(wrong.0, 400, "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_locks_are_taken_at_once_or_not_at_all_through_whatever_node() {
    let it = Cluster::start_with_api(3, FAST).await;
    let (one, two) = (lease(it.api(1), 40_000).await, lease(it.api(2), 40_000).await);
    let acquire = |lease: &Value, locks: &[&str], wait_ms: u32| {
        let locks: Vec<Value> = locks.iter().map(|lock| json!({ "lock": lock })).collect();
        json!({ "secret": lease["secret"], "request_id": "x", "locks": locks, "wait_ms": wait_ms })
    };
    let path = "/v1/locks/acquire";
    let mut tokens = Vec::new();
    for id in it.ids() {
        let (code, held) = post(it.api(id), path, &acquire(&one, &["a", "b"], 0)).await.unwrap();
        assert_eq!((code, &held["state"]), (200, &json!("held")), "{held}");
        assert_eq!(held["locks"][1]["lock"], "/locks/b");
        tokens.push(held["locks"].clone());
    }
    assert!(tokens.iter().all(|all| *all == tokens[0]), "{tokens:?}");
    let (code, busy) = post(it.api(2), path, &acquire(&two, &["b", "c"], 0)).await.unwrap();
    assert_eq!((code, &busy["state"]), (200, &json!("busy")), "{busy}");
    assert_eq!((&busy["locks"][0]["state"], &busy["locks"][1]["state"]), (&json!("busy"), &json!("gone")));
    let (api, waits) = (it.api(3).to_owned(), acquire(&two, &["b", "c"], 15_000));
    let waits = tokio::spawn(async move { post(&api, path, &waits).await });
    let end = format!("DELETE /v1/leases/{}", one["lease"].as_str().unwrap());
    let ended = request(it.api(1), &end, "", &json!({ "secret": one["secret"] }).to_string()).await.unwrap();
    assert_eq!(ended.0, 204);
    let (_, held) = waits.await.unwrap().unwrap();
    assert_eq!(held["state"], "held", "{held}");
    let (code, _) = post(it.api(1), path, &json!({ "locks": [{ "lock": "a" }] })).await.unwrap();
    assert_eq!(code, 400, "it needs a lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_election_by_http_is_the_one_of_our_client() {
    let it = Cluster::start_with_api(3, FAST).await;
    let client = it.client().await;
    let leadership = client.election("a/b").campaign("native").await.unwrap();
    let get = async |query: &str| {
        request(it.api(2), &format!("GET /v1/elections/a%2Fb/leader{query}"), "", "").await.unwrap()
    };
    let (code, first) = get("").await;
    assert_eq!((code, &first["leader"]["value"]), (200, &json!("native")), "{first}");
    assert_eq!(first["leader"]["token"], leadership.token().0.to_string());
    leadership.set_value("changed").await.unwrap();
    let (_, second) = get(&format!("?wait_ms=30000&after={}", first["zxid"].as_str().unwrap())).await;
    assert_eq!(second["leader"]["value"], "changed", "{second}");
    let lease = lease(it.api(1), 40_000).await;
    let campaign =
        json!({ "secret": lease["secret"], "request_id": "a", "wait_ms": 15_000, "value": "rest" });
    let api = it.api(3).to_owned();
    let waits =
        tokio::spawn(async move { post(&api, "/v1/elections/a%2Fb/campaign", &campaign).await.unwrap() });
    let candidates = async || {
        let candidates = client.election("a/b").candidates().await.unwrap();
        (candidates.len() == 2).then_some(candidates)
    };
    eventually("two candidates", secs(20), candidates).await;
    leadership.resign().await.unwrap();
    let (code, held) = waits.await.unwrap();
    assert_eq!((code, &held["state"]), (200, &json!("held")), "{held}");
    let leader = client.election("a/b").leader().await.unwrap().unwrap();
    assert_eq!(
        (leader.value.as_str(), leader.token.0.to_string()),
        ("rest", held["token"].as_str().unwrap().to_owned())
    );
    let resign = json!({ "secret": lease["secret"], "token": held["token"] });
    let resigned = post(it.api(1), "/v1/elections/a%2Fb/resign", &resign).await.unwrap();
    assert_eq!(resigned, (200, json!({ "released": true })));
    assert_eq!(get("").await, (200, json!({ "zxid": "0", "leader": null })));
    assert_eq!(get("?after=x").await.0, 400);
}
