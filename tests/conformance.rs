//! `client/conformance.json` in Rust: the scenarios of the thin clients, by the rules that
//! `client/README.md` has for their authors, on the plainest client that keeps them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowlock_client::Fence;
use rowlock_proto::report::in_query;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::Said;
use crate::support::http::{post, request};

const REFUSED: i32 = 1;
const USAGE: i32 = 64;

/// Of a lease: short, but longer than the pauses of a busy machine.
const TTL: Duration = Duration::from_secs(6);
/// For a step that must come true.
const PATIENCE: Duration = Duration::from_secs(60);
const VERSION: u64 = 5;
/// Fields of steps that are about what stands before the nodes, about a language, or about its observers.
const OF_CLIENTS: [&str; 5] = ["through", "before", "throws", "outside_ms", "observed"];
const PAUSE: Duration = Duration::from_millis(100);

/// A lease with its keep-alive.
struct Lease {
    apis: Arc<[String]>,
    id: String,
    secret: Value,
    /// When it is over, as far as the client may believe.
    deadline: watch::Sender<Instant>,
    /// The newest question to its holder.
    asked: watch::Sender<Value>,
}

impl Lease {
    async fn open(apis: Arc<[String]>) -> Lease {
        let sent = Instant::now();
        let wanted = json!({ "ttl_ms": TTL.as_millis() as u64 });
        let (code, opened) = ask(&apis, "/v1/leases", &wanted, sent + PATIENCE).await.expect("a lease");
        assert_eq!((code, &opened["ttl_ms"]), (201, &wanted["ttl_ms"]), "{opened}");
        let deadline = watch::Sender::new(until(sent, &opened["ttl_ms"]));
        let id = opened["lease"].as_str().unwrap().to_owned();
        let asked = watch::Sender::new(Value::Null);
        Lease { apis, id, secret: opened["secret"].clone(), deadline, asked }
    }

    /// Asks at a third of the lease's time, by a task of its own.
    async fn keep_alive(self: Arc<Self>) {
        let path = format!("/v1/leases/{}/keepalive", self.id);
        let mut revoked = Instant::now() + Duration::from_secs(86_400);
        loop {
            tokio::time::sleep(TTL / 3).await;
            let (sent, deadline) = (Instant::now(), *self.deadline.borrow());
            match ask(&self.apis, &path, &json!({ "secret": self.secret }), deadline).await {
                Some((200, kept)) if kept["valid_for_ms"].is_u64() => {
                    for question in kept["asked"].as_array().into_iter().flatten() {
                        if let Some(left) = question["revoked_in_ms"].as_u64() {
                            revoked = revoked.min(sent + Duration::from_millis(left));
                        }
                        self.asked.send_replace(question.clone());
                    }
                    let new = until(sent, &kept["valid_for_ms"]).min(revoked);
                    // A deadline that has passed is never moved.
                    self.deadline.send_if_modified(|old| {
                        let is_over = Instant::now() >= *old;
                        *old = if is_over { *old } else { new };
                        !is_over
                    });
                }
                Some((404, _)) => {
                    self.deadline.send_replace(Instant::now());
                    return;
                }
                _ => {}
            }
        }
    }

    async fn end(&self) {
        let what = format!("DELETE /v1/leases/{}", self.id);
        let body = json!({ "secret": self.secret }).to_string();
        for api in self.apis.iter() {
            if request(api, &what, "", &body).await.is_some_and(|(code, _)| code < 500) {
                return;
            }
        }
    }
}

/// The moment of sending, and what the answer gives, less a tenth.
fn until(sent: Instant, valid_for_ms: &Value) -> Instant {
    sent + Duration::from_millis(valid_for_ms.as_u64().unwrap()) * 9 / 10
}

/// Asks one node after another, until one of them has an answer or the time is over.
async fn ask(apis: &[String], path: &str, document: &Value, deadline: Instant) -> Option<(u16, Value)> {
    while Instant::now() < deadline {
        for api in apis {
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, post(api, path, document)).await {
                Ok(Some(answer)) if answer.0 < 500 => return Some(answer),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    None
}

/// Percent-encoded, as other languages write text that has half a surrogate pair.
fn of_units(units: &[Value]) -> String {
    let byte = |byte: u64| format!("%{byte:02X}");
    let unit = |unit: &Value| match unit.as_u64().unwrap() {
        unit @ 0..0x80 => byte(unit),
        unit => byte(0xe0 | unit >> 12) + &byte(0x80 | unit >> 6 & 0x3f) + &byte(0x80 | unit & 0x3f),
    };
    units.iter().map(unit).collect()
}

struct Attempt {
    path: String,
    lease: Arc<Lease>,
    keeps_alive: AbortHandle,
    waits: watch::Receiver<bool>,
    task: Option<JoinHandle<(&'static str, Value)>>,
    outcome: Option<(&'static str, Value)>,
    is_released: bool,
    /// An unwaited release under way. The client's next attempt takes it, and waits for it.
    posted: Option<JoinHandle<()>>,
}

impl Attempt {
    /// Starts an attempt behind the unwaited release of its client.
    async fn begin(
        apis: &Arc<[String]>,
        prefix: &str,
        step: &Value,
        behind: Option<JoinHandle<()>>,
    ) -> Attempt {
        let lease = Arc::new(Lease::open(apis.clone()).await);
        let name = match (step["lock"].as_str(), step["path"].as_str()) {
            (Some(name), _) => in_query(&format!("{prefix}/{name}")),
            (_, Some(path)) => in_query(&format!("/locks/{prefix}/{path}")),
            _ => format!("{prefix}/{}", of_units(step["units"].as_array().unwrap())),
        };
        let path = format!("/v1/locks/{name}");
        let keeps_alive = tokio::spawn(lease.clone().keep_alive()).abort_handle();
        let (tell, waits) = watch::channel(false);
        let attempt = run(lease.clone(), path.clone(), step.clone(), tell);
        let task = tokio::spawn(async {
            if let Some(release) = behind {
                release.await.expect("the release ends");
            }
            attempt.await
        });
        let (task, outcome, is_released, posted) = (Some(task), None, false, None);
        Attempt { path, lease, keeps_alive, waits, task, outcome, is_released, posted }
    }

    async fn finish(&mut self) -> &'static str {
        if let Some(task) = self.task.take() {
            let outcome = match tokio::time::timeout(PATIENCE, task).await.expect("it ends") {
                Ok(outcome) => outcome,
                Err(error) => {
                    assert!(error.is_cancelled(), "{error}");
                    ("aborted", Value::Null)
                }
            };
            if outcome.0 != "held" {
                // What has not led to the lock gives its place back.
                self.keeps_alive.abort();
                self.lease.end().await;
            }
            self.outcome = Some(outcome);
        }
        self.outcome.as_ref().unwrap().0
    }

    fn token(&self) -> &Value {
        &self.outcome.as_ref().unwrap().1
    }

    /// A copy of the request, as after a lost answer, is told the same.
    async fn release(&self, say: &str) -> bool {
        let release = json!({ "secret": self.lease.secret, "token": self.token() });
        let first = self.ask("release", release.clone()).await["released"].clone();
        assert_eq!(self.ask("release", release).await["released"], first, "{say}");
        first == true
    }

    /// Releases in the background.
    fn post(&mut self) {
        let (lease, path) = (self.lease.clone(), format!("{}/release", self.path));
        let release = json!({ "secret": self.lease.secret, "token": self.token() });
        self.posted = Some(tokio::spawn(async move {
            let (code, answer) =
                ask(&lease.apis, &path, &release, Instant::now() + PATIENCE).await.expect("an answer");
            assert_eq!((code, &answer["released"]), (200, &json!(true)), "{answer}");
        }));
    }

    /// Makes the znode, or sets it where there is one, while the token holds the lock.
    async fn write(&self, path: &str) -> &'static str {
        let lock = self.path.strip_prefix("/v1/locks/").unwrap();
        let lines = format!("Rowlock-Fence: {lock};{}\r\n", self.token().as_str().unwrap());
        for method in ["POST", "PUT"] {
            let what = format!("{method} /v1/znodes{path}");
            match request(&self.lease.apis[0], &what, &lines, "data").await {
                Some((200 | 201, _)) => return "written",
                Some((412, problem)) if problem["stale"] == true => return "stale",
                Some((409, _)) => {}
                other => panic!("{what}: {other:?}"),
            }
        }
        panic!("{path} is there, and is not")
    }

    async fn ask(&self, verb: &str, document: Value) -> Value {
        let path = format!("{}/{verb}", self.path);
        let (code, answer) =
            ask(&self.lease.apis, &path, &document, Instant::now() + PATIENCE).await.expect("an answer");
        // The silent client's lease is over: it holds nothing.
        let is_over = code == 404 && verb == "release";
        assert!(code == 200 || is_over, "{code} {answer}");
        if is_over { json!({ "released": false }) } else { answer }
    }
}

async fn run(
    lease: Arc<Lease>,
    path: String,
    step: Value,
    waits: watch::Sender<bool>,
) -> (&'static str, Value) {
    let ends = Instant::now() + Duration::from_millis(step["timeout_ms"].as_u64().unwrap());
    let never = step["timeout_ms"] == 0;
    let mut acquire = json!({ "secret": lease.secret, "request_id": "attempt" });
    for field in ["mode", "permits", "limit"].into_iter().filter(|field| !step[field].is_null()) {
        acquire[field] = step[field].clone();
    }
    loop {
        // All of its requests wait, or none does.
        let left = ends.saturating_duration_since(Instant::now()).as_millis().clamp(1, 20_000);
        acquire["wait_ms"] = if never { json!(0) } else { json!(left as u64) };
        let deadline = *lease.deadline.borrow();
        let Some((code, stands)) = ask(&lease.apis, &format!("{path}/acquire"), &acquire, deadline).await
        else {
            return ("lost", Value::Null);
        };
        match (code, stands["state"].as_str()) {
            (200, Some("held")) => return ("held", stands["token"].clone()),
            (200, Some("busy")) => return ("busy", Value::Null),
            (202, Some("waiting")) if Instant::now() >= ends => return ("timeout", Value::Null),
            (202, Some("waiting")) => drop(waits.send(true)),
            (422, _) => return ("refused", Value::Null),
            (400, _) => return ("invalid", Value::Null),
            _ => panic!("{code} {stands}"),
        }
    }
}

async fn scenario(apis: &Arc<[String]>, prefix: &str, scenario: &Value) {
    let mut attempts: BTreeMap<String, Attempt> = BTreeMap::new();
    let mut fences: BTreeMap<&str, Fence> = BTreeMap::new();
    for step in scenario["steps"].as_array().unwrap() {
        let name = step["as"].as_str().unwrap_or_default().to_owned();
        let say = format!("{}: {step}", scenario["name"]);
        let verb = step["do"].as_str().unwrap();
        if matches!(verb, "acquire" | "start") {
            // The attempts of a client that has posted releases; each scenario has one such client.
            let mut posted = attempts.values_mut().filter_map(|one| one.posted.take());
            let behind = step["client"].as_str().and_then(|_| posted.next());
            attempts.insert(name.clone(), Attempt::begin(apis, prefix, step, behind).await);
        }
        match verb {
            "start" => {}
            "pause" => tokio::time::sleep(TTL * step["leases"].as_u64().unwrap() as u32).await,
            "tokens_rise" => {
                let of = step["of"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                let tokens: Vec<i64> =
                    of.map(|name| attempts[name].token().as_str().unwrap().parse().unwrap()).collect();
                assert!(tokens.is_sorted_by(|a, b| a < b), "{say}: {tokens:?}");
            }
            "fence" => {
                let fence = fences.entry(step["resource"].as_str().unwrap()).or_default();
                let token = step["token"].as_str().or_else(|| attempts[&name].token().as_str()).unwrap();
                assert_eq!(fence.check(token.parse().unwrap()).is_ok(), step["expect"] == true, "{say}");
            }
            "write" => {
                let written = attempts[&name].write(&format!("/{}", prefix.replace('/', "-"))).await;
                assert_eq!(written, step["expect"], "{say}");
            }
            "ask" => {
                let path = format!(
                    "/v1/locks/{}/ask",
                    in_query(&format!("{prefix}/{}", step["lock"].as_str().unwrap()))
                );
                let mut question = json!({ "reason": step["reason"] });
                if step["within_ms"].is_u64() {
                    question["within_ms"] = step["within_ms"].clone();
                }
                let (code, answer) = ask(apis, &path, &question, Instant::now() + PATIENCE).await.unwrap();
                assert_eq!((code, &answer["asked"]), (200, &step["expect"]), "{say}: {answer}");
                assert_eq!(answer["holders"].as_array().unwrap().len() as u64, answer["asked"], "{say}");
            }
            _ => attempt(attempts.get_mut(&name).unwrap(), verb, step, &say).await,
        }
    }
    for one in attempts.into_values() {
        one.keeps_alive.abort();
        one.lease.end().await;
    }
}

async fn attempt(one: &mut Attempt, verb: &str, step: &Value, say: &str) {
    match verb {
        "acquire" | "finish" => assert_eq!(one.finish().await, step["expect"], "{say}"),
        "waiting" => {
            let waits = tokio::time::timeout(PATIENCE, one.waits.wait_for(|waits| *waits)).await;
            assert!(waits.is_ok_and(|told| told.is_ok()), "{say}");
        }
        "pending" => assert!(!one.task.as_ref().unwrap().is_finished(), "{say}"),
        "abort" => one.task.as_ref().unwrap().abort(),
        "verify" => {
            let answer = one.ask("verify", json!({ "token": one.token() })).await;
            assert_eq!(answer["held"], step["expect"], "{say}");
        }
        "release" => {
            // A client asks once, and remembers that it has given the lock back.
            let released = !std::mem::replace(&mut one.is_released, true) && one.release(say).await;
            assert_eq!(released, step["expect"], "{say}");
        }
        "asked" => {
            let mut asked = one.lease.asked.subscribe();
            let question = tokio::time::timeout(PATIENCE, asked.wait_for(|asked| !asked.is_null())).await;
            let question = question.expect("a question in time").unwrap().clone();
            assert_eq!((&question["reason"], &question["token"]), (&step["expect"], one.token()), "{say}");
        }
        "unasked" => assert_eq!(*one.lease.asked.borrow(), Value::Null, "{say}"),
        "post" => {
            one.is_released = true;
            one.post();
        }
        "silence" => one.keeps_alive.abort(),
        "lost" => {
            let begun = Instant::now();
            while Instant::now() < *one.lease.deadline.borrow() {
                assert!(begun.elapsed() < PATIENCE, "{say}");
                let deadline = *one.lease.deadline.borrow();
                tokio::time::sleep_until(deadline.into()).await;
            }
        }
        other => panic!("unknown step {other}: this runner is older than the scenarios"),
    }
}

pub fn scenarios() -> Vec<Value> {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("client/conformance.json");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(document["version"], VERSION, "the scenarios are of another version");
    let scenarios = document["scenarios"].as_array().unwrap();
    assert!(scenarios.len() >= 12, "{} scenarios", scenarios.len());
    scenarios.clone()
}

/// The command line's side of the names in the scenarios: what one of the two holds, the other finds held, at
/// the same path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_one_lock_by_http_and_on_the_command_line() {
    let it = Cluster::start_with_api(1, FAST).await;
    let apis: Arc<[String]> = Arc::from([it.api(1).to_owned()]);
    let lease = Arc::new(Lease::open(apis.clone()).await);
    let keeps_alive = tokio::spawn(lease.clone().keep_alive());
    let scenarios = scenarios();
    let steps: Vec<&Value> =
        scenarios.iter().flat_map(|scenario| scenario["steps"].as_array().unwrap()).collect();
    let mut names = 0;
    for (at, step) in steps.iter().enumerate() {
        if let (Some(_), Some(name)) =
            (step["path"].as_str(), at.checked_sub(1).and_then(|at| steps[at]["lock"].as_str()))
        {
            one_lock(&it, &lease, name, step["path"].as_str().unwrap()).await;
            names += 1;
        }
        if step["expect"] == "invalid" && step["lock"].is_string() {
            let name = format!("cli/{}", step["lock"].as_str().unwrap());
            let said = ask_cli(&it, &["lock", "-n", &name, "true"]).await;
            assert!(said.code == USAGE && said.err.contains("invalid lock name"), "{name}: {}", said.err);
        }
    }
    assert!(names >= 10, "{names} names");
    keeps_alive.abort();
    lease.end().await;
}

async fn ask_cli(it: &Cluster, arguments: &[&str]) -> Said {
    start(&it.folder, arguments).end().await
}

async fn one_lock(it: &Cluster, lease: &Lease, name: &str, path: &str) {
    let (name, path) = (format!("cli/{name}"), format!("/locks/cli/{path}"));
    let address = format!("/v1/locks/{}", in_query(&name));
    let acquire = json!({ "secret": lease.secret, "request_id": "one" });
    let (code, held) = post(it.api(1), &format!("{address}/acquire"), &acquire).await.unwrap();
    assert_eq!((code, &held["state"]), (200, &json!("held")), "{name}: {held}");
    for told in [&*name, &path] {
        let said = ask_cli(it, &["lock", "-n", told, "true"]).await;
        assert_eq!(said.code, REFUSED, "{told}: {}", said.err);
        let queue = ask_cli(it, &["queue", "-o", "json", told]).await;
        let queue: Value = serde_json::from_str(&queue.out).unwrap();
        assert_eq!((&queue["lock"], &queue["holder_count"]), (&json!(path), &json!(1)), "{told}");
    }
    let release = json!({ "secret": lease.secret, "token": held["token"] });
    let (_, answer) = post(it.api(1), &format!("{address}/release"), &release).await.unwrap();
    assert_eq!(answer["released"], true, "{name}");
    let mut holder = start(&it.folder, &["lock", &name]);
    holder.first_line().await;
    let again = json!({ "secret": lease.secret, "request_id": "again" });
    let (_, answer) = post(it.api(1), &format!("{address}/acquire"), &again).await.unwrap();
    assert_eq!(answer["state"], "busy", "{name}: {answer}");
    holder.end_with_signal().await;
    let history = ask_cli(it, &["history", &name, "-o", "simple"]).await;
    assert!(history.out.lines().count() >= 6, "{}", history.out);
    assert!(history.out.lines().all(|line| line.split('\t').nth(1) == Some(&*path)), "{}", history.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_rust_does_what_all_clients_must_do() {
    let it = Cluster::start_with_api(3, FAST).await;
    let apis: Arc<[String]> = it.ids().into_iter().map(|id| it.api(id).to_owned()).collect();
    let scenarios = scenarios();
    let is_ours = |scenario: &&Value| {
        let steps = scenario["steps"].as_array().unwrap();
        !steps.iter().any(|step| OF_CLIENTS.iter().any(|field| !step[field].is_null()))
    };
    for (number, one) in scenarios.iter().filter(is_ours).enumerate() {
        let prefix = format!("conformance/{number}");
        let run = scenario(&apis, &prefix, one);
        assert!(tokio::time::timeout(2 * PATIENCE, run).await.is_ok(), "{}", one["name"]);
    }
}
