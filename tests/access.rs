//! Who may take which lock, with real processes, TLS and tokens: by every way in two users try what is not
//! theirs. Each attempt is refused, each refusal names the missing right, and the audit log has all of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use rowlock_client::{Client, CreateMode, ErrorCode, Guard, Pem, Tls};
use rowlock_frames::raw::RawClient;
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Claim;
use serde_json::{Value, json};

use crate::support::certificates::{self, MONTH, TLS, believe, give_certificates, write};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock, run};
use crate::support::http::request;
use crate::support::{eventually, secs, tools};
use crate::thin_clients;

use rowlock_tls::issue::Leaf;

const USERS: [&str; 2] = ["alice", "bob"];
const AUDIT: &str = "audit.log";
/// The rules of the table: each team has what lies below its prefix.
const RULES: &str = "# teams\n\
    all /locks/alice/* x509:CN=alice\nall /locks/alice/* token:alice\n\
    all /locks/bob/* x509:CN=bob\nall /locks/bob/* token:bob\n\
    none /locks/* anyone\nnone /locks anyone\n";

/// One node with certificates for alice, bob and the operator ops, and a token for each.
async fn start() -> (Cluster, BTreeMap<String, String>) {
    let settings = format!(
        "{FAST}{TLS}client_ca = \"tls/clients-ca.pem\"\n[peer]\nsecurity = \"mtls\"\n[client]\n\
         x509_superusers = [\"CN=ops\"]\n[http]\napi = true\ntoken_file = \"tokens\"\n\
         [audit]\nfile = \"{AUDIT}\"\n"
    );
    let mut tokens = BTreeMap::new();
    let cluster = Cluster::start_with_files(1, &settings, |folder| {
        let (nodes, clients) = (certificates::authority("nodes"), certificates::authority("clients"));
        believe(folder, nodes.cert_pem(), &nodes, &[]);
        give_certificates(folder, &nodes, 1);
        write(&folder.join("tls/clients-ca.pem"), clients.cert_pem());
        for name in USERS.into_iter().chain(["ops"]) {
            let issued = clients.issue(&Leaf { name, hosts: &[], uri: None, valid_s: MONTH }).unwrap();
            write(&folder.join(format!("tls/{name}.key")), &issued.key_pem);
            write(&folder.join(format!("tls/{name}.pem")), &issued.cert_pem);
            let role = if name == "ops" { "operator" } else { "lock:/*,znode:/*" };
            let made = run(folder, &["token", "new", name, "--role", role, "--file", "tokens"]);
            assert_eq!(made.code, 0, "{}", made.err);
            tokens.insert(name.to_owned(), made.out.trim().to_owned());
        }
    })
    .await;
    (cluster, tokens)
}

async fn connect(cluster: &Cluster, name: &str) -> Client {
    let file = |name: &str| Pem::File(cluster.folder.join("tls").join(name));
    let identity = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
    let tls = Tls::new(file("peers-ca.pem")).identity(identity.0, identity.1);
    let builder = Client::builder().endpoints(cluster.secure(1)).tls(tls).label(name);
    builder.session_timeout(secs(60)).connect_timeout(secs(60)).connect().await.unwrap()
}

/// The command line with the certificate of a user.
async fn command(cluster: &Cluster, user: &str, arguments: &[&str]) -> Said {
    let cert = format!("--tls-cert=tls/{user}.pem");
    let key = format!("--tls-key=tls/{user}.key");
    let endpoints = format!("--endpoints={}", cluster.secure(1));
    let way = ["--tls-ca=tls/peers-ca.pem", &cert, &key, &endpoints];
    // What stands behind `--` is the command under the lock.
    let at = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
    let all = [&arguments[..at], &way, &arguments[at..]].concat();
    let child = rowlock(&cluster.folder, &all).spawn().unwrap();
    tokio::task::spawn_blocking(|| finish(child)).await.unwrap()
}

async fn http(cluster: &Cluster, token: &str, what: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let lines = format!("Authorization: Bearer {token}\r\n");
    request(cluster.http(1), what, &lines, &body).await.unwrap_or_else(|| panic!("{what}: no answer"))
}

fn denials(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == "denied").collect()
}

/// Attempts by commands: what they say on stderr, or are expected to say, names the right.
const BY_COMMAND: [(&str, &[&str]); 13] = [
    ("take", &["lock", "-n", "LOCK", "--", "true"]),
    ("take", &["lock", "-w", "5", "LOCK", "--", "true"]),
    ("take", &["lock", "--shared", "-n", "LOCK", "--", "true"]),
    ("take", &["sem", "-n", "3", "TEAM/sem", "--", "true"]),
    ("take", &["elect", "--path", "PATH", "me", "--", "true"]),
    ("ask", &["ask", "LOCK", "--reason", "hotfix"]),
    ("force", &["ask", "LOCK", "--reason", "hotfix", "--within", "10s"]),
    ("see", &["queue", "LOCK"]),
    ("see", &["history", "LOCK"]),
    ("see", &["release", "--force", "--token", "TOKEN", "LOCK"]),
    ("see", &["release", "LOCK"]),
    ("see", &["queue", "--path", "PATH", "-o", "json"]),
    ("force", &["release", "--force", "--token", "0", "LOCK"]),
];

/// Attempt whose lock is in no team's folder.
const TERRAFORM: [&str; 5] = ["terraform", "run", "state", "--", "true"];

/// Attempts by commands on znodes.
const BY_ZNODE_COMMAND: [(&str, &[&str]); 10] = [
    ("see", &["get", "PATH"]),
    ("see", &["ls", "PATH"]),
    ("see", &["stat", "PLACE"]),
    ("see", &["ls", "/locks"]),
    ("see", &["delete", "-r", "PATH"]),
    ("force", &["delete", "PLACE"]),
    ("force", &["set", "PLACE", "mine"]),
    ("take", &["set", "PATH", "mine"]),
    ("take", &["create", "-e", "-s", "PATH/me-"]),
    ("take", &["create", "PATH-2"]),
];

/// Attempts over HTTP: right, method and path, document.
const BY_HTTP: [(&str, &str, &str); 17] = [
    ("take", "POST /v1/locks/LOCK/acquire", r#"{"ttl_ms":10000}"#),
    ("take", "POST /v1/locks/LOCK/acquire", r#"{"ttl_ms":10000,"mode":"shared"}"#),
    ("take", "POST /v1/locks/TEAM/new/acquire", r#"{"ttl_ms":10000}"#),
    ("take", "POST /v1/locks/TEAM/sem/acquire", r#"{"ttl_ms":10000,"mode":"permits","limit":3}"#),
    ("take", "LOCK /v1/terraform/TEAM%2Fstate", r#"{"ID":"one","Operation":"apply"}"#),
    ("ask", "POST /v1/locks/LOCK/ask", r#"{"reason":"hotfix"}"#),
    ("force", "POST /v1/locks/LOCK/ask", r#"{"reason":"hotfix","within_ms":5000}"#),
    ("force", "DELETE /v1/locks/LOCK/holders/TOKEN", ""),
    ("see", "POST /v1/locks/LOCK/verify", r#"{"token":"TOKEN"}"#),
    ("see", "GET /v1/locks/LOCK", ""),
    ("see", "GET /v1/queue?lock=LOCK", ""),
    ("see", "GET /v1/history?lock=LOCK", ""),
    ("see", "GET /v1/contention?lock=LOCK", ""),
    ("see", "GET /v1/znodesPLACE", ""),
    ("see", "GET /v1/znodesPATH?view=children", ""),
    ("force", "PUT /v1/znodesPLACE", r#""mine""#),
    ("force", "DELETE /v1/znodesPLACE", ""),
];

/// One user's lock, as the words of the tables name it.
struct Target {
    lock: String,
    path: String,
    claim: Claim,
    team: &'static str,
}

impl Target {
    fn fill(&self, text: &str) -> String {
        let (place, token) = (&*self.claim.path, self.claim.token.to_string());
        let text = text.replace("PLACE", place).replace("PATH", &self.path).replace("TOKEN", &token);
        let verb = text.replace("LOCK /v1", "\u{1}/v1").replace("TEAM", self.team);
        verb.replace("LOCK", &self.lock).replace('\u{1}', "LOCK ")
    }
}

/// The attempts that were made: how many for lack of each right.
#[derive(Default)]
struct Attempts(BTreeMap<&'static str, usize>);

impl Attempts {
    fn made(&mut self, right: &'static str) {
        *self.0.entry(right).or_default() += 1;
    }
}

async fn by_commands(it: &Cluster, user: &str, target: &Target, attempts: &mut Attempts) {
    for (right, words) in BY_COMMAND {
        let words: Vec<String> = words.iter().map(|word| target.fill(word)).collect();
        let said = command(it, user, &words.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let named = said.err.contains(&format!("the right \"{right}\" on /locks/{}", target.team));
        assert!(said.code == 1 && named, "{user}: {words:?}: {} {}", said.code, said.err);
        attempts.made(right);
    }
    let said = command(it, user, &TERRAFORM).await;
    let wanted = "rowlock: @terraform/state: the right \"take\" on /locks/@terraform/state is missing; an operator can \
                  grant it with `rowlock acl set`\n";
    assert_eq!((said.code, said.err.as_str()), (1, wanted), "{user}");
    attempts.made("take");
    for (right, words) in BY_ZNODE_COMMAND {
        let words: Vec<String> = words.iter().map(|word| target.fill(word)).collect();
        let said = command(it, user, &words.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let named = said.err.contains(&format!("the right \"{right}\" on /locks"))
            && said.err.contains("`rowlock acl set`");
        assert!(said.code == 1 && named, "{user}: {words:?}: {} {}", said.code, said.err);
        attempts.made(right);
    }
}

async fn over_http(it: &Cluster, token: &str, target: &Target, attempts: &mut Attempts) {
    for (right, what, body) in BY_HTTP {
        let (what, body) = (target.fill(what), target.fill(body));
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(&body).unwrap() };
        let (status, answer) = http(it, token, &what, &body).await;
        assert_eq!((status, &answer["missing"]), (403, &json!(right)), "{what}: {answer}");
        attempts.made(right);
    }
}

/// The client in Rust: its locks, and each request of ZooKeeper's protocol.
async fn by_client(client: &Client, target: &Target, attempts: &mut Attempts) {
    let (path, place) = (&target.path, &*target.claim.path);
    let mutex = client.mutex(&target.lock);
    let open = || Acl::open();
    let refused = |what: &str, code: Option<ErrorCode>| {
        assert_eq!(code, Some(ErrorCode::NoAuth), "{what} of {}", target.lock);
    };
    macro_rules! attempt {
        ($right:literal, $call:expr) => {{
            refused(stringify!($call), $call.await.err().and_then(|e| e.code()));
            attempts.made($right);
        }};
    }
    attempt!("take", mutex.lock());
    attempt!("take", mutex.try_lock());
    attempt!("take", client.semaphore(&target.lock, 2).acquire());
    attempt!("take", client.rwlock(&target.lock).read());
    attempt!("take", client.create(&format!("{path}/me-"), None, CreateMode::EphemeralSequential, open()));
    attempt!("take", client.create(&format!("{path}/me"), None, CreateMode::Ephemeral, open()));
    attempt!("take", client.set(path, None, None));
    attempt!("ask", client.ask_holders(mutex.path(), "hotfix", None));
    attempt!("force", client.ask_holders(mutex.path(), "hotfix", Some(secs(5))));
    attempt!("force", client.force_release(&target.claim));
    attempt!("force", client.delete(place, None));
    attempt!("force", client.set(place, None, None));
    attempt!("force", client.set_acl(place, open(), None));
    attempt!("force", client.set_acl(path, open(), None));
    attempt!("force", client.set_acl("/locks", open(), None));
    attempt!("see", client.get(place));
    attempt!("see", client.exists(path));
    attempt!("see", client.exists_watched(&format!("{path}/not-there")));
    attempt!("see", client.get_watched(path));
    attempt!("see", client.get_children(path));
    attempt!("see", client.get_children_watched(path));
    attempt!("see", client.get_acl(path));
    attempt!("see", client.report_queue(path, 10));
    let rights = client.rights_on(path, None).await.unwrap();
    assert!(rights.rights.is_empty() && rights.rule.is_some(), "{rights:?}");
    assert_eq!(client.report_locks(100).await.unwrap().locks.len(), 1, "only its own");
}

/// A digest user in frames, whom no rule names.
async fn in_frames(it: &Cluster, target: &Target, attempts: &mut Attempts) {
    let mut raw = RawClient::attach(it.endpoint(1), 60_000).await;
    let auth = Bytes::from_static(b"mallory:secret");
    raw.call(Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth }).await.unwrap();
    let watch = |mode| Request::AddWatch { path: target.path.clone(), mode };
    for (right, what) in [
        ("see", watch(0)),
        ("see", watch(1)),
        ("see", Request::GetAllChildrenNumber(target.path.clone())),
        ("see", Request::Verify([target.claim.clone()].into())),
        ("force", Request::ForceRelease(target.claim.clone())),
    ] {
        assert_eq!(raw.call(what).await.err(), Some(ErrorCode::NoAuth));
        attempts.made(right);
    }
    raw.close().await;
}

/// The client for Python, if there is one.
async fn in_python(it: &Cluster, token: &str, target: &Target, attempts: &mut Attempts) {
    let Some(found) = tools::python("what the client for Python says of a refusal") else { return };
    let mut python = tools::command(found);
    python.current_dir(thin_clients::clients().join("python"));
    let script = "import sys\nfrom rowlock import Rowlock, Refused\n\
                  c = Rowlock([sys.argv[1]], token=sys.argv[2])\n\
                  for call in (lambda: c.lock(sys.argv[3], timeout=0).__enter__(), lambda: c.ask(sys.argv[3], 'why')):\n\
                  \x20   try:\n        call()\n        print('granted')\n\
                  \x20   except Refused as e:\n        print(e)\n";
    python.args(["-c", script, &format!("http://{}", it.http(1)), token, &target.lock]);
    let said = thin_clients::run(python).await;
    let told = said.out.contains("the right \"take\"") && said.out.contains("the right \"ask\"");
    assert!(told && !said.out.contains("granted"), "{}{}", said.out, said.err);
    attempts.made("take");
    attempts.made("ask");
}

/// What each user may do with its own lock, by each way.
async fn own_is_allowed(it: &Cluster, user: &'static str, (client, token): (&Client, &str), held: Guard) {
    let lock = format!("{user}/x");
    let said = command(it, user, &["queue", &lock]).await;
    assert!(said.code == 0 && said.out.contains(user), "{}", said.err);
    assert_eq!(command(it, user, &["ask", &lock, "--reason", "hotfix"]).await.code, 0);
    let said = command(it, user, &["lock", &format!("{user}/cli"), "--", "true"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    let (status, granted) =
        http(it, token, &format!("POST /v1/locks/{user}/http/acquire"), &json!({"ttl_ms": 10_000})).await;
    assert_eq!(status, 200, "{granted}");
    let given = json!({"secret": granted["secret"], "token": granted["token"]});
    assert_eq!(http(it, token, &format!("POST /v1/locks/{user}/http/release"), &given).await.0, 200);
    assert_eq!(client.rights_on(&format!("/locks/{user}/x"), None).await.unwrap().rights.len(), 4);
    let token_of_holder = held.token().to_string();
    let said = command(it, user, &["release", "--force", "--token", &token_of_holder, &lock]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    held.lost().await;
    let said = command(it, user, &["history", &lock]).await;
    assert!(said.out.contains(&format!("forced by x509:CN={user}")), "{}{}", said.out, said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_theirs_is_refused_to_two_users_by_every_way_and_what_is_theirs_is_not() {
    let (it, tokens) = start().await;
    fs::write(it.folder.join("rules"), RULES).unwrap();
    let said = command(&it, "alice", &["acl", "set", "--file", "rules"]).await;
    assert!(said.code == 1 && said.err.contains("superuser"), "{} {}", said.code, said.err);
    let said = command(&it, "ops", &["acl", "set", "--file", "rules"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(command(&it, "ops", &["acl", "get"]).await.out, RULES);
    let mut held = Vec::new();
    for user in USERS {
        let client = connect(&it, user).await;
        let guard = client.mutex(format!("{user}/x")).lock().await.unwrap();
        held.push((user, client, guard));
    }
    let mut attempts = Attempts::default();
    for (user, other) in [(0, 1), (1, 0)] {
        let (team, _, guard) = &held[other];
        let (name, client, _) = &held[user];
        let lock = format!("{team}/x");
        let target = Target { path: format!("/locks/{lock}"), lock, claim: guard.claim(), team };
        by_commands(&it, name, &target, &mut attempts).await;
        over_http(&it, &tokens[*name], &target, &mut attempts).await;
        by_client(client, &target, &mut attempts).await;
        in_frames(&it, &target, &mut attempts).await;
        in_python(&it, &tokens[*name], &target, &mut attempts).await;
    }
    let made: usize = attempts.0.values().sum();
    assert!(made >= 120, "{made} attempts");
    assert!(held.iter().all(|(_, _, guard)| guard.is_held()), "nothing was taken away");
    let all_are_there = async || {
        let lines = denials(&it.data(1).join(AUDIT));
        let of = |right: &str| lines.iter().filter(|line| line["missing"] == right).count();
        let are_there = attempts.0.iter().all(|(right, made)| of(right) >= *made);
        are_there.then_some(lines)
    };
    let lines = eventually("the audit log has all refusals", secs(30), all_are_there).await;
    let is_known = |line: &Value| {
        let who = line["who"].as_array().into_iter().flatten().filter_map(Value::as_str);
        who.clone().any(|who| who.contains("alice") || who.contains("bob") || who.contains("mallory"))
    };
    let mut of_rights = lines.iter().filter(|line| !line["missing"].is_null());
    assert!(of_rights.all(is_known), "{lines:?}");
    for (user, client, guard) in held {
        own_is_allowed(&it, user, (&client, &tokens[user]), guard).await;
    }
    let text = fs::read_to_string(it.data(1).join(AUDIT)).unwrap();
    assert!(text.contains("all /locks/alice/* x509:CN=alice"), "the change of the rules is recorded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_rules_an_ordinary_certificate_forces_no_lock_and_an_operator_does_and_is_named() {
    let (it, tokens) = start().await;
    let alice = connect(&it, "alice").await;
    let held = alice.mutex("payroll").lock().await.unwrap();
    let token = held.token().to_string();
    let force = ["release", "--force", "--token", &token, "payroll"];
    let said = command(&it, "bob", &force).await;
    let wanted = "rowlock: payroll: the right \"force\" on /locks/payroll is missing; an operator can grant it with \
                  `rowlock acl set`\n";
    assert_eq!((said.code, said.err.as_str()), (1, wanted));
    for arguments in [&["delete", "-r", "/locks/payroll"][..], &["delete", held.path()]] {
        let said = command(&it, "bob", arguments).await;
        let named = said.err.contains("the right \"force\" on /locks/payroll is missing");
        assert!(said.code == 1 && named, "{} {}", said.code, said.err);
    }
    let what = format!("DELETE /v1/locks/payroll/holders/{token}");
    let (status, answer) = http(&it, &tokens["bob"], &what, &Value::Null).await;
    assert_eq!((status, &answer["missing"]), (403, &json!("force")), "{answer}");
    assert!(held.is_held());
    let said = command(&it, "bob", &["acl", "check", "me", "payroll", "--right", "force"]).await;
    assert_eq!((said.code, said.out.contains("take,ask,see")), (1, true), "{}{}", said.out, said.err);
    let said = command(&it, "bob", &["acl", "check", "x509:CN=alice", "payroll"]).await;
    assert_eq!(said.code, 1, "only operators ask for others");
    for (token, query, wanted) in [
        ("bob", "", (200, json!(["take", "ask", "see"]), Value::Null)),
        ("ops", "", (200, json!(["take", "ask", "force", "see"]), Value::Null)),
        ("ops", "&who=token:bob", (200, json!(["take", "ask", "see"]), Value::Null)),
        (
            "bob",
            "&who=token:alice",
            (403, Value::Null, json!("only operators may read the rights of others")),
        ),
    ] {
        let what = format!("GET /v1/access?lock=payroll{query}");
        let (status, answer) = http(&it, &tokens[token], &what, &Value::Null).await;
        assert_eq!((status, answer["rights"].clone(), answer["detail"].clone()), wanted, "{token}: {answer}");
    }
    let said = command(&it, "ops", &["acl", "check", "x509:CN=bob", "payroll", "-o", "json"]).await;
    let shown: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&shown["rights"], &shown["guarded"]), (&json!(["take", "ask", "see"]), &json!(true)));
    assert_eq!(command(&it, "ops", &force).await.code, 0);
    held.lost().await;
    let said = command(&it, "bob", &["history", "payroll", "-o", "json"]).await;
    let entries: Value = serde_json::from_str(&said.out).unwrap();
    let lost = entries["entries"].as_array().into_iter().flatten().find(|entry| entry["event"] == "lost");
    assert_eq!(lost.map(|lost| &lost["by"]), Some(&json!("x509:CN=ops")), "{}", said.out);
    // A rule gives the right to one of them.
    let said = command(&it, "ops", &["acl", "set", "force,see,take", "payroll", "x509:CN=bob"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    let said = command(&it, "ops", &["acl", "list", "-o", "json"]).await;
    let rules: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        rules,
        json!([{"locks": "/locks/payroll", "rights": ["take", "force", "see"], "who": "x509:CN=bob"}])
    );
    let ops = connect(&it, "ops").await;
    let again = ops.mutex("payroll").lock().await.unwrap();
    let token = again.token().to_string();
    let said = command(&it, "bob", &["release", "--force", "--token", &token, "payroll"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(command(&it, "ops", &["acl", "rm", "payroll", "x509:CN=bob"]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_of_auth_new_makes_a_superuser() {
    let folder = tempfile::tempdir().unwrap();
    let said = run(folder.path(), &["auth", "new", "-o", "json"]);
    let made: Value = serde_json::from_str(&said.out).unwrap();
    let settings = format!("{FAST}[client]\nsuper_digest = {}\n", made["digest"]);
    let cluster = Cluster::start(1, &settings).await;
    for (credential, code) in [(made["auth"].as_str().unwrap(), 0), ("digest:super:other", 1)] {
        let mut command = rowlock(&cluster.folder, &["rebalance", "--percent", "100"]);
        let child = command.env("ROWLOCK_AUTH", credential).spawn().unwrap();
        let said = tokio::task::spawn_blocking(|| finish(child)).await.unwrap();
        assert_eq!(said.code, code, "{}", said.err);
    }
}
