//! `rowlock tls`: what it makes, that it overwrites nothing, and what it finds wrong.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::command::{Said, run};

const USAGE: i32 = 64;
const DATA_FOLDER: i32 = 73;
const CONFIG: i32 = 78;

fn told(folder: &Path, arguments: &[&str]) -> String {
    let said = run(folder, arguments);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{arguments:?}");
    said.out
}

fn refused(folder: &Path, arguments: &[&str], code: i32) -> String {
    let Said { code: got, err, .. } = run(folder, arguments);
    assert_eq!(got, code, "{arguments:?}: {err}");
    err
}

fn checked(folder: &Path) -> Vec<Value> {
    let said = run(folder, &["tls", "check", "-o", "json"]);
    serde_json::from_str::<Value>(&said.out).unwrap().as_array().unwrap().clone()
}

fn of<'a>(all: &'a [Value], file: &str) -> &'a Value {
    all.iter().find(|one| one["file"] == file).unwrap_or_else(|| panic!("no {file} in {all:?}"))
}

#[test]
fn two_commands_make_a_cluster_and_a_client_that_every_check_takes() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    let out =
        told(here, &["tls", "init", "--hosts", "db1.example,10.0.0.2+db2,[fd00::3]", "--cluster", "orders"]);
    assert!(
        out.contains("peer_ca = \"tls/peers-ca.pem\"") && out.contains("node 2 at 10.0.0.2, db2"),
        "{out}"
    );
    assert!(out.contains("secure_client = \"db1.example:2481\""), "{out}");
    let out = told(here, &["tls", "client", "alice"]);
    assert!(out.contains("in ACLs it is x509:CN=alice"), "{out}");
    assert!(out.contains("ROWLOCK_TLS_CA=tls/peers-ca.pem ROWLOCK_TLS_CERT=tls/client-alice.pem"), "{out}");
    for entry in fs::read_dir(here.join("tls")).unwrap().map(Result::unwrap) {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
    let all = checked(here);
    assert_eq!(all.len(), 6);
    assert!(
        all.iter().all(|one| one["problems"] == serde_json::json!([]) && one["has_key"] == true),
        "{all:?}"
    );
    let node = of(&all, "tls/node-3.pem");
    assert_eq!((&node["node"], &node["cluster"]), (&3.into(), &"orders".into()));
    assert_eq!((&node["hosts"][0], &node["signed_by"]), (&"fd00::3".into(), &"tls/peers-ca.pem".into()));
    assert_eq!(of(&all, "tls/client-alice.pem")["signed_by"], "tls/clients-ca.pem");
    let table = told(here, &["tls", "check"]);
    assert!(table.contains("node 1 of orders") && table.contains("CN=alice"), "{table}");
}

#[test]
fn the_file_of_a_cluster_says_which_certificates_it_needs() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    let node =
        |id: u32| format!("[[node]]\nid = {id}\nclient = \"127.0.0.1:{id}\"\npeer = \"127.0.0.1:10{id}\"\n");
    fs::write(here.join("cluster.toml"), format!("name = \"prod\"\n{}{}{}", node(4), node(5), node(6)))
        .unwrap();
    told(here, &["tls", "init"]);
    let all = checked(here);
    let node = of(&all, "tls/node-6.pem");
    assert_eq!((&node["cluster"], &node["hosts"][1]), (&"prod".into(), &"localhost".into()));
    // One more, later: it takes the name from the others.
    let out = told(here, &["tls", "node", "7", "--hosts", "db7"]);
    assert!(
        out.starts_with("made tls/node-7.pem and tls/node-7.key for node 7 of \"prod\", until 20"),
        "{out}"
    );
}

#[test]
fn nothing_that_is_there_is_overwritten_and_bad_names_leave_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    let err = refused(here, &["tls", "init", "--hosts", "a b"], USAGE);
    assert!(err.contains("\"a b\" is neither the name of a host nor an address"), "{err}");
    assert!(!here.join("tls").exists());
    told(here, &["tls", "init", "--nodes", "1"]);
    told(here, &["tls", "client", "alice"]);
    let before = fs::read(here.join("tls/client-alice.key")).unwrap();
    for (arguments, file) in [
        (&["tls", "init", "--nodes", "1"][..], "tls/peers-ca.pem"),
        (&["tls", "client", "alice"], "tls/client-alice.pem"),
        (&["tls", "node", "1", "--hosts", "b"], "tls/node-1.pem"),
    ] {
        let err = refused(here, arguments, DATA_FOLDER);
        assert!(err.contains(&format!("{file} exists, and nothing was overwritten")), "{err}");
    }
    assert_eq!(fs::read(here.join("tls/client-alice.key")).unwrap(), before);
    refused(here, &["tls", "client", "../alice"], USAGE);
    let err = refused(here, &["tls", "client", "bob", "--dir", "elsewhere"], DATA_FOLDER);
    assert!(err.contains("make it with `rowlock tls init`"), "{err}");
}

#[test]
fn renewed_certificates_have_the_same_names_and_new_keys() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    told(here, &["tls", "init", "--hosts", "a+10.0.0.1,b", "--days", "20"]);
    told(here, &["tls", "client", "alice", "--days", "40"]);
    let (before, key) = (checked(here), fs::read(here.join("tls/node-1.key")).unwrap());
    let out = told(here, &["tls", "renew", "--within", "30"]);
    assert!(
        out.contains("tls/node-1.pem") && out.contains("tls/node-2.pem") && !out.contains("alice"),
        "{out}"
    );
    let after = checked(here);
    let (old, new) = (of(&before, "tls/node-1.pem"), of(&after, "tls/node-1.pem"));
    assert_eq!(
        (&old["subject"], &old["hosts"], &old["uris"]),
        (&new["subject"], &new["hosts"], &new["uris"])
    );
    assert!(new["days_left"].as_i64() > Some(300) && old["serial"] != new["serial"], "{new}");
    assert_eq!(new["problems"], serde_json::json!([]));
    assert_ne!(fs::read(here.join("tls/node-1.key")).unwrap(), key);
    assert_eq!(told(here, &["tls", "renew", "--within", "30"]), "nothing to renew in tls\n");
    assert!(told(here, &["tls", "renew", "client-alice"]).contains("CN=alice"));
    let err = refused(here, &["tls", "renew", "peers-ca"], CONFIG);
    assert!(err.contains("is a CA"), "{err}");
}

#[test]
fn check_names_each_file_that_somebody_would_refuse() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    told(here, &["tls", "init", "--nodes", "3", "--days", "10"]);
    told(here, &["tls", "client", "alice"]);
    told(here, &["tls", "init", "--nodes", "1", "--dir", "other"]);
    // Open to others, another one's key, another authority's certificate, no certificate at all.
    fs::set_permissions(here.join("tls/node-1.key"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(here, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(here.join("tls"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(here.join("tls/node-1.key"), here.join("tls/node-2.key")).unwrap();
    fs::set_permissions(here.join("tls/node-2.key"), fs::Permissions::from_mode(0o600)).unwrap();
    for end in ["pem", "key"] {
        fs::copy(here.join(format!("other/node-1.{end}")), here.join(format!("tls/node-3.{end}"))).unwrap();
    }
    fs::write(here.join("tls/notes.pem"), "nothing").unwrap();
    let said = run(here, &["tls", "check", "--min-days", "30"]);
    assert_eq!(said.code, CONFIG);
    for wanted in [
        "tls/node-1.pem: it expires in 9 days",
        "tls/node-1.pem: tls/node-1.key: has a key, and can be read or written by other users of this machine",
        "tls/node-2.pem: tls/node-2.key: does not go with tls/node-2.pem",
        "tls/node-3.pem: ",
        "tls/notes.pem: has no certificate",
    ] {
        assert!(said.err.contains(wanted), "{wanted} is not in {}", said.err);
    }
    assert!(!said.err.contains("alice") && !said.err.contains("-ca.pem:"), "{}", said.err);
    let said = run(here, &["tls", "check", "tls/client-alice.pem", "tls/clients-ca.pem"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let said = run(here, &["tls", "check", "tls/client-alice.pem", "tls/peers-ca.pem"]);
    let err = "rowlock: tls/client-alice.pem: its certificate is signed by an unknown authority (according to tls/peers-ca.pem)\n";
    assert_eq!((said.code, said.err.as_str()), (CONFIG, err));
}

#[test]
fn check_says_of_the_files_in_a_clusters_file_what_its_nodes_would_say() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    let node =
        |id: u32| format!("[[node]]\nid = {id}\nclient = \"127.0.0.1:{id}\"\npeer = \"127.0.0.1:10{id}\"\n");
    let tls =
        "[tls]\ncert = \"tls/node-{id}.pem\"\nkey = \"tls/node-{id}.key\"\npeer_ca = \"tls/peers-ca.pem\"\n";
    let peer = "[peer]\nsecurity = \"mtls\"\n";
    let file = format!("name = \"prod\"\n{tls}{peer}{}{}{}", node(1), node(2), node(3));
    fs::write(here.join("cluster.toml"), file).unwrap();
    let err = refused(here, &["tls", "check"], CONFIG);
    assert!(err.contains("no certificate that the cluster's file names is here"), "{err}");
    told(here, &["tls", "init"]);
    assert!(told(here, &["tls", "check"]).contains("node 3 of prod"));
    // On the machine of node 2.
    for id in [1, 3] {
        fs::remove_file(here.join(format!("tls/node-{id}.pem"))).unwrap();
    }
    let out = told(here, &["tls", "check", "--config", "cluster.toml"]);
    assert!(out.contains("node 2 of prod") && !out.contains("node 1"), "{out}");
    fs::copy(here.join("tls/node-2.pem"), here.join("tls/node-1.pem")).unwrap();
    fs::copy(here.join("tls/node-2.key"), here.join("tls/node-1.key")).unwrap();
    let err = refused(here, &["tls", "check"], CONFIG);
    let wanted =
        "node 1 of prod needs a certificate for rowlock://prod/node/1, and this is that of node 2 of prod\n";
    assert!(err.ends_with(wanted) && err.lines().count() == 1, "{err}");
    fs::remove_file(here.join("tls/node-1.pem")).unwrap();
    fs::remove_file(here.join("tls/node-2.key")).unwrap();
    let err = refused(here, &["tls", "check"], CONFIG);
    assert!(
        err.contains("node 2 would not start: ") && err.contains("tls/node-2.key: cannot be read"),
        "{err}"
    );
}
