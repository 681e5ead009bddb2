//! `rowlock debug bundle` holds what helps, and none of the secrets that lie beside it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;

use rowlock_client::{Client, CreateMode};
use rowlock_proto::acl::Acl;
use serde_json::{Value, json};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{finish, rowlock};
use crate::support::http::post;
use crate::support::secs;

const DIGEST: &str = "D/InIHSb7yEEbrWz8b9l71RjZJU=";
const SASL: &str = "canary-sasl-password";
const AUTH: &str = "digest:super:test";
const OTHER_AUTH: &str = "digest:bob:canary-auth-password";
const TOKEN: &str = "canary-bearer-token";
const DATA: &str = "canary-znode-data";
const LABEL: &str = "canary-label";
const KEY: &str = "canary-private-key";

/// Text by name, without the folder that all lie in.
fn unpacked(bytes: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
    let mut parts = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let (folder, name) = path.split_once('/').unwrap();
        assert!(folder.starts_with("rowlock-debug-"), "{folder}");
        parts.insert(name.to_owned(), text);
    }
    parts
}

/// Puts secrets wherever a user may have some. Gives those that are made on the way, and a client that
/// goes on holding a lock.
async fn place_canaries(it: &Cluster) -> (Vec<String>, Client) {
    // With as much in the logs as there ever is.
    let mut command = rowlock(&it.folder, &["log-level", "trace"]);
    command.env("ROWLOCK_AUTH", AUTH);
    let traced = tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap();
    assert_eq!(traced.code, 0, "{}", traced.err);
    let client = Client::builder().endpoints(&it.endpoints()).label(LABEL).session_timeout(secs(40));
    let client = client.connect().await.unwrap();
    client.add_auth("digest", OTHER_AUTH.strip_prefix("digest:").unwrap()).await.unwrap();
    client.create("/canary", Some(DATA.into()), CreateMode::Persistent, Acl::open()).await.unwrap();
    client.get("/canary").await.unwrap();
    let guard = client.mutex("nightly").lock().await.unwrap();
    // Its place stays in the queue as long as the session.
    std::mem::forget(guard);
    let (_, lease) = post(it.api(1), "/v1/leases", &json!({ "ttl_ms": 40_000 })).await.unwrap();
    let secret = lease["secret"].as_str().unwrap().to_owned();
    let acquire = json!({ "secret": secret, "request_id": "1", "wait_ms": 0, "label": LABEL });
    post(it.api(1), "/v1/locks/nightly/acquire", &acquire).await.unwrap();
    fs::create_dir(it.folder.join("tls")).unwrap();
    fs::write(it.folder.join("tls/node-1.key"), KEY).unwrap();
    let mut config = fs::read_to_string(it.config()).unwrap();
    config.push_str("\n[tls]\ncert = \"tls/node-{id}.pem\"\nkey = \"tls/node-{id}.key\"\n");
    fs::write(it.config(), config).unwrap();
    let lines = format!("at 1 {SASL}\nAuthorization: Bearer {TOKEN}\nwith {OTHER_AUTH} and {DIGEST}\n");
    fs::write(it.folder.join("other.log"), lines).unwrap();
    let password = secret.rsplit(['.', ':', '-']).next().unwrap().to_owned();
    (vec![secret, password], client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_has_what_helps_and_none_of_the_secrets_that_were_placed_before() {
    let settings = format!(
        "[log]\nslow_request = \"0s\"\n[client]\nsuper_digest = \"super:{DIGEST}\"\n\
         [client.sasl_users]\nalice = \"{SASL}\"\n{FAST}"
    );
    let it = Cluster::start_with_api(3, &settings).await;
    let (made, client) = place_canaries(&it).await;
    let bundle = || {
        let logs: Vec<String> = (1..=3)
            .map(|id| format!("--log-file={}", it.folder.join(format!("node-{id}.log")).display()))
            .collect();
        let mut arguments = vec!["debug", "bundle", "b.tar.gz", "--interval", "0.3", "--log-file=other.log"];
        arguments.extend(logs.iter().map(String::as_str));
        let mut command = rowlock(&it.folder, &arguments);
        command.env("ROWLOCK_AUTH", OTHER_AUTH).env("ROWLOCK_TOKEN", TOKEN);
        tokio::task::spawn_blocking(move || finish(command.spawn().unwrap()))
    };
    let said = bundle().await.unwrap();
    assert_eq!(said.code, 0, "{}", said.err);
    let path = it.folder.join("b.tar.gz");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.len() < 16 << 20, "{} bytes", bytes.len());
    let parts = unpacked(&bytes);
    let names: Vec<&str> = parts.keys().map(String::as_str).collect();
    for name in ["about.json", "cluster.toml", "doctor.json", "wal/node-1.json", "queues/1.json"] {
        assert!(parts.contains_key(name), "{name} is missing: {names:?}, {}", said.out);
    }
    for id in 1..=3 {
        for file in
            ["status.json", "readyz.txt", "metrics-1.txt", "metrics-2.txt", "history.json", "locks.json"]
        {
            assert!(
                parts.contains_key(&format!("nodes/{id}/{file}")),
                "{id} {file}: {names:?}, {}",
                said.out
            );
        }
        let log = names.iter().find(|name| name.ends_with(&format!("node-{id}.log"))).unwrap();
        assert!(parts[*log].contains("serving clients"), "{log}");
    }
    assert_ne!(parts["nodes/1/metrics-1.txt"], parts["nodes/1/metrics-2.txt"], "time goes by between them");
    let queue: Value = serde_json::from_str(&parts["queues/1.json"]).unwrap();
    assert!(queue.to_string().contains("/locks/nightly"), "{queue}");
    let about: Value = serde_json::from_str(&parts["about.json"]).unwrap();
    assert_eq!(about["rowlock"], env!("CARGO_PKG_VERSION"));

    let placed = [DIGEST, SASL, TOKEN, DATA, LABEL, KEY, "canary-auth-password"].map(str::to_owned);
    for secret in placed.iter().chain(&made) {
        assert!(secret.len() >= 8, "{secret}");
        for (name, text) in &parts {
            assert!(!text.contains(secret.as_str()), "{secret} is in {name}");
        }
        assert!(!said.out.contains(secret.as_str()));
    }
    let again = bundle().await.unwrap();
    assert!(again.code == 73 && again.err.contains("name another"), "{}", again.err);
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_is_made_also_when_the_nodes_are_dead_and_says_what_is_missing() {
    let mut it = Cluster::start(1, FAST).await;
    it.kill(1);
    let mut command = rowlock(&it.folder, &["debug", "bundle", "b.tar.gz", "--interval", "0"]);
    let said = tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap();
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("without nodes/1/status.json: "), "{}", said.out);
    let parts = unpacked(&fs::read(it.folder.join("b.tar.gz")).unwrap());
    let wal: Value = serde_json::from_str(&parts["wal/node-1.json"]).unwrap();
    assert!(wal["segments"].as_array().is_some_and(|all| !all.is_empty()), "{wal}");
    assert!(parts["doctor.json"].contains("nothing listens there"), "{}", parts["doctor.json"]);
}
