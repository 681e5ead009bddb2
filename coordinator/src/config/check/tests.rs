//! Tests of each possible mistake in a file, and of its error text.

mod keys;
mod security;

use rowlock_world::spoilt::Spoiler;
use std::path::Path;

use rowlock_proto::NodeId;

use crate::config::{ClientAuth, ClusterConfig, Discovery, LimitsConfig, PeerSecurity, TlsFiles};

const THREE: &str = r#"name = "orders"
data = "d"

[[node]]
id = 1
client = "127.0.0.1:2181"
peer = "127.0.0.1:2281"

[[node]]
id = 2
client = "127.0.0.1:2182"
peer = "127.0.0.1:2282"

[[node]]
id = 3
client = "127.0.0.1:2183"
peer = "127.0.0.1:2283"
"#;

fn parse(text: &str) -> Result<ClusterConfig, String> {
    ClusterConfig::parse(text, Path::new("conf/cluster.toml")).map_err(|e| e.to_string())
}

/// Returns the error for `THREE` with `from` replaced by `to`.
fn complaint(from: &str, to: &str) -> String {
    assert!(THREE.contains(from));
    parse(&THREE.replace(from, to)).expect_err("the file is wrong")
}

#[test]
fn good_file_gives_every_node_its_own_folder_and_addresses() {
    let config = parse(THREE).unwrap();
    let node = config.node(NodeId(2)).unwrap();
    assert_eq!(node.name, "orders");
    assert_eq!(node.data_dir, Path::new("conf/d/node-2"));
    assert_eq!(node.http_addr, "127.0.0.1:8082");
    assert_eq!(node.nodes.len(), 3);
    assert_eq!(config.endpoints(), "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(config.node(NodeId(4)).is_none());
}

/// Loads a file with these lines under `[client]` and these rights, beside a file of secrets with its own
/// rights, in a folder that all users may enter.
fn load(client: &str, mode: u32, secret: &str, secret_mode: u32) -> Result<ClusterConfig, String> {
    load_in(0o755, client, mode, secret, secret_mode)
}

/// Loads such a file from a folder with these rights.
#[expect(clippy::disallowed_methods, reason = "the test writes a file as a person would")]
fn load_in(
    folder: u32,
    client: &str,
    mode: u32,
    secret: &str,
    secret_mode: u32,
) -> Result<ClusterConfig, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(folder)).unwrap();
    for (name, text, mode) in
        [("cluster.toml", &*format!("{THREE}[client]\n{client}\n"), mode), ("secret", secret, secret_mode)]
    {
        let path = temp.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let loaded = ClusterConfig::load(&temp.path().join("cluster.toml"));
    loaded.map_err(|e| e.to_string().replace(temp.path().to_str().unwrap(), ""))
}

const DIGEST: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

#[test]
fn a_file_with_secrets_that_others_may_read_is_refused() {
    for secret in [&format!("super_digest = \"{DIGEST}\""), "sasl_users = { bob = \"pw\" }"] {
        for mode in [0o644, 0o640, 0o620] {
            let refused = load(secret, mode, "", 0o600).unwrap_err();
            assert!(refused.contains("has secrets, and can be read or written by other users"), "{refused}");
            assert!(refused.contains("chmod 600"), "{refused}");
        }
        assert!(load(secret, 0o600, "", 0o600).is_ok(), "{secret}");
        assert!(load_in(0o700, secret, 0o644, "", 0o600).is_ok(), "nobody else gets there: {secret}");
    }
    assert!(load("", 0o644, "", 0o644).is_ok(), "without secrets everybody may read it");
}

#[test]
fn secrets_may_be_in_separate_files_that_only_the_owner_reads() {
    let (digest, users) = ("super_digest_file = \"secret\"", "sasl_users_file = \"secret\"");
    let loaded = load(digest, 0o644, &format!("{DIGEST}\n"), 0o600).unwrap();
    assert_eq!(loaded.client.super_digest.as_deref(), Some(DIGEST));
    let loaded = load(users, 0o644, "bob:p:w\nann:x\n", 0o600).unwrap();
    let found: Vec<(&str, &str)> =
        loaded.client.sasl_users.iter().map(|(user, password)| (&**user, &**password)).collect();
    assert_eq!(found, [("ann", "x"), ("bob", "p:w")]);
    for (client, secret, mode, why) in [
        (digest, DIGEST, 0o640, "super_digest_file = \"secret\" can be read or written by other users"),
        (users, "bob:pw", 0o604, "sasl_users_file = \"secret\" can be read or written by other users"),
        (users, "bob", 0o600, "line 1 of secret is not user:password"),
        (users, "bob:a\nbob:b", 0o600, "sasl_users has \"bob\" twice"),
        (digest, "nonsense", 0o600, "super_digest is not \"super:\""),
        ("super_digest_file = \"none\"", "", 0o600, "super_digest_file = \"none\" cannot be read"),
    ] {
        let refused = load(client, 0o600, secret, mode).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert!(refused.starts_with("/cluster.toml:"), "{refused}");
    }
}

#[test]
fn printed_configuration_reads_back_equal() {
    let text = THREE.replace(
        "\n[[node]]\nid = 1",
        "\n[client]\nwords = [\"*\"]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n[[node]]\nid = 1",
    );
    let mut config = ClusterConfig::parse(&text, Path::new("/x/cluster.toml")).unwrap();
    config.nodes[1].learner = true;
    config.znodes.enforce_quota = true;
    config.http.hosts = vec!["rowlock.internal".to_owned(), "b".to_owned()];
    config.client.max_connections_per_address = 7;
    config.client.new_sessions_per_second = 8;
    config.tls = Some(TlsFiles {
        cert: "/t/node-{id}.pem".into(),
        key: "/t/node-{id}.key".into(),
        peer_ca: Some("/t/peers.pem".into()),
        client_ca: Some("/t/clients.pem".into()),
        crl: Some("/t/crl.pem".into()),
    });
    config.peer.security = Some(PeerSecurity::Mtls);
    config.nodes[0].secure_client_addr = Some("127.0.0.1:2191".to_owned());
    config.nodes[1].secure_client_addr = Some("a:2192".to_owned());
    config.nodes[1].secure_client_listen = Some("127.0.0.1:2192".to_owned());
    config.nodes[1].client_addr = None;
    config.client.client_auth = ClientAuth::Want;
    config.client.x509_superusers = vec!["CN=admin,O=Acme\\, Inc.".to_owned()];
    config.limits = LimitsConfig {
        sessions: 9,
        sessions_share: 2,
        memory_bytes: Some(1 << 30),
        warn_free_bytes: 5,
        min_free_bytes: 4,
        reserve_bytes: 3,
    };
    config.warnings.clear();
    let mut again = ClusterConfig::parse(&config.to_toml(), Path::new("/y/cluster.toml")).unwrap();
    again.warnings.clear();
    assert_eq!(again, config);
}

#[test]
fn committed_cluster_toml_is_accepted_without_warnings() {
    let text = include_str!("../../../../cluster.toml");
    let config = parse(text).unwrap();
    assert_eq!(config.nodes.len(), 3);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn duplicate_id_names_both_lines() {
    assert_eq!(
        complaint("id = 3", "id = 2"),
        "conf/cluster.toml:15: node id 2 appears twice (first on line 10); give every [[node]] its own id"
    );
}

#[test]
fn id_zero_is_out_of_range() {
    assert_eq!(
        complaint("id = 1", "id = 0"),
        "conf/cluster.toml:5: node id 0 is out of range; number the nodes 1 to 254"
    );
}

#[test]
fn unknown_key_names_the_key_its_line_and_the_known_ones() {
    let said = complaint("id = 1", "id = 1\ncleint = \"x\"");
    assert!(said.starts_with("conf/cluster.toml:6: unknown field `cleint`, expected one of"), "{said}");
    assert!(said.ends_with("correct the spelling of this key or remove it"), "{said}");
}

#[test]
fn unknown_section_is_refused() {
    let said = complaint("data = \"d\"", "[sesion]\nmin_timeout_ms = 1");
    assert!(said.contains("unknown field `sesion`"), "{said}");
}

#[test]
fn missing_key_is_named() {
    let said = complaint("peer = \"127.0.0.1:2282\"\n", "");
    assert!(said.contains("missing field `peer`"), "{said}");
    assert!(said.starts_with("conf/cluster.toml:9"), "{said}");
}

#[test]
fn bad_addresses_are_refused_with_the_reason() {
    for (bad, reason) in [
        ("127.0.0.1", "the port is missing"),
        (":2182", "the host is missing"),
        ("127.0.0.1:0", "port 0 would be another one at every start"),
        ("127.0.0.1:70000", "the port is not a number from 1 to 65535"),
        ("127.0.0.256:2182", "this is not an IPv4 address"),
        ("::1:2182", "an IPv6 address needs brackets"),
        ("[::g]:2182", "this is not an IPv6 address"),
        ("a b:2182", "this is not the name of a host"),
    ] {
        assert_eq!(
            complaint("client = \"127.0.0.1:2182\"", &format!("client = \"{bad}\"")),
            format!(
                "conf/cluster.toml:11: client = \"{bad}\" is not an address: {reason}; write it as \"host:port\", e.g. \
                 \"127.0.0.1:2181\" or \"[::1]:2181\""
            )
        );
    }
}

#[test]
fn one_address_twice_is_refused() {
    assert_eq!(
        complaint("peer = \"127.0.0.1:2283\"", "peer = \"127.0.0.1:2181\""),
        "conf/cluster.toml:17: peer of node 3 takes 127.0.0.1:2181, which is already the client address of node 1; give \
         every listener its own port"
    );
}

#[test]
fn loopback_http_of_different_machines_does_not_collide() {
    let mut text = THREE.to_owned();
    for n in 1..=3 {
        text = text.replace(
            &format!("client = \"127.0.0.1:218{n}\"\npeer = \"127.0.0.1:228{n}\""),
            &format!("client = \"h{n}:2181\"\npeer = \"h{n}:2281\"\nhttp = \"127.0.0.1:8080\""),
        );
    }
    assert_eq!(parse(&text).unwrap().nodes[2].http_addr, "127.0.0.1:8080");
}

#[test]
fn node_listens_elsewhere_than_it_is_found_if_the_file_says_so() {
    let text = THREE.replace("id = 2", "id = 2\npeer_listen = \"0.0.0.0:9000\"");
    let config = parse(&text).unwrap();
    let node = config.node(NodeId(2)).unwrap();
    assert_eq!(node.peer_addr, "0.0.0.0:9000");
    assert_eq!(node.nodes[1].peer_addr, "127.0.0.1:2282");
    assert_eq!(node.client_addr.as_deref(), Some("127.0.0.1:2182"));
    let mut again = ClusterConfig::parse(&config.to_toml(), Path::new("/y/cluster.toml")).unwrap();
    again.nodes.iter_mut().zip(&config.nodes).for_each(|(a, b)| a.data_dir = b.data_dir.clone());
    assert_eq!(again, config);
}

#[test]
fn timeouts_in_impossible_relation_are_refused() {
    for (section, line, what) in [
        (
            "[session]\nmin_timeout_ms = 50000",
            3,
            "min_timeout_ms = 50000 is more than max_timeout_ms = 40000",
        ),
        ("[session]\nmax_timeout_ms = 10", 3, "min_timeout_ms = 4000 is more than max_timeout_ms = 10"),
        ("[session]\nmin_timeout_ms = 0", 3, "min_timeout_ms = 0 would expire every session at once"),
        ("[raft]\nheartbeat_ms = 9", 3, "heartbeat_ms = 9 is less than the 10 that a node can keep"),
        (
            "[raft]\nheartbeat_ms = 400",
            3,
            "election_timeout_min_ms = 1000 is less than three times heartbeat_ms = 400",
        ),
        ("[raft]\nelection_timeout_max_ms = 1000", 3, "election_timeout_max_ms = 1000 is not more than"),
        ("[raft]\nsnapshot_every = 0", 3, "snapshot_every = 0 would snapshot without pause"),
        ("[raft]\nbusy_poll_us = 10001", 3, "busy_poll_us = 10001 would keep a processor busy for little"),
    ] {
        let said = complaint("data = \"d\"", section);
        assert!(said.starts_with(&format!("conf/cluster.toml:{line}: {what}")), "{said}");
    }
}

#[test]
fn wrong_client_settings_are_refused() {
    for (line, what) in [
        ("max_connections = 0", "max_connections = 0 would refuse every client"),
        ("words = [\"ruok\", \"RUOK\"]", "words has \"RUOK\", which is not a four-letter word"),
        ("super_digest = \"secret\"", "super_digest is not \"super:\" and the base64 of a SHA-1"),
    ] {
        let said = complaint("data = \"d\"", &format!("[client]\n{line}"));
        assert!(said.starts_with(&format!("conf/cluster.toml:3: {what}")), "{said}");
    }
}

#[test]
fn a_memory_limit_that_no_node_could_keep_is_refused() {
    let said = complaint("data = \"d\"", "[limits]\nmemory_bytes = 1000");
    assert!(said.starts_with("conf/cluster.toml:3: memory_bytes = 1000 is too little for a node"), "{said}");
}

#[test]
fn a_node_warns_of_a_full_disk_before_it_refuses() {
    let said = complaint("data = \"d\"", "[limits]\nmin_free_bytes = 2000000000");
    assert!(
        said.starts_with("conf/cluster.toml:3: min_free_bytes = 2000000000 is more than warn_free_bytes"),
        "{said}"
    );
    let set =
        |keys: &str| parse(&THREE.replace("data = \"d\"", &format!("[limits]\n{keys}"))).unwrap().limits;
    let without = set("warn_free_bytes = 0\nmin_free_bytes = 2000000000");
    assert_eq!((without.warn_free_bytes, without.min_free_bytes), (0, 2_000_000_000));
    assert_eq!(set("reserve_bytes = 0"), LimitsConfig { reserve_bytes: 0, ..LimitsConfig::default() });
}

#[test]
fn wrong_history_settings_are_refused() {
    for (line, what) in [
        ("max_age = \"7\"", "max_age = \"7\" is not a duration"),
        ("max_age = \"d\"", "max_age = \"d\" is not a duration"),
        ("max_age = \"+7d\"", "max_age = \"+7d\" is not a duration"),
        ("max_age = \"1s\"", "max_age = \"1s\" is out of range"),
        ("max_age = \"99999999999d\"", "max_age = \"99999999999d\" is out of range"),
        ("max_bytes = 1000", "max_bytes = 1000 is too little for a history"),
    ] {
        let said = complaint("data = \"d\"", &format!("[history]\n{line}"));
        assert!(said.starts_with(&format!("conf/cluster.toml:3: {what}")), "{said}");
    }
}

#[test]
fn discovery_needs_the_number_of_founders_and_seeds() {
    let set = |keys: &str| THREE.replace("data = \"d\"", &format!("[cluster]\n{keys}"));
    let config = parse(&set("expect = 3\nseeds = \"a:1, b:2\"")).unwrap();
    let found = Discovery { expect: 3, seeds: vec!["a:1".to_owned(), "b:2".to_owned()] };
    assert_eq!(config.discovery.as_ref(), Some(&found));
    let again = ClusterConfig::parse(&config.to_toml(), Path::new("/y/cluster.toml")).unwrap();
    assert_eq!(again.discovery, config.discovery);
    let node = config.node(NodeId(2)).unwrap();
    assert_eq!(node.nodes.iter().map(|member| member.id).collect::<Vec<_>>(), [NodeId(2)], "itself alone");
    for (keys, what) in [
        ("expect = 1\nseeds = \"a:1\"", "3: expect = 1 in [cluster] is out of range"),
        ("expect = 3\nseeds = \" , \"", "4: seeds in [cluster] is empty"),
        ("expect = 3\nseeds = \"a:1,b\"", "4: seeds in [cluster] has \"b\", which is not an address"),
    ] {
        let said = complaint("data = \"d\"", &format!("[cluster]\n{keys}"));
        assert!(said.starts_with(&format!("conf/cluster.toml:{what}")), "{said}");
    }
    let said = parse(&set("expect = 2\nseeds = \"a:1\"")).unwrap_err();
    assert!(
        said.contains("node 3 is none of those who form the cluster") && said.contains("learner"),
        "{said}"
    );
}

#[test]
fn autopilot_takes_off_or_a_time_and_a_number_of_voters() {
    let set = |keys: &str| THREE.replace("data = \"d\"", &format!("[autopilot]\n{keys}"));
    let config = parse(&set("promote_after = \"10s\"\nremove_dead_after = \"2h\"\nmin_voters = 5")).unwrap();
    let autopilot = config.autopilot;
    assert_eq!((autopilot.promote_after_ms, autopilot.remove_dead_after_ms), (Some(10_000), Some(7_200_000)));
    assert_eq!((autopilot.min_voters, autopilot.readmit_wiped), (5, false));
    let again = ClusterConfig::parse(&config.to_toml(), Path::new("/y/cluster.toml")).unwrap();
    assert_eq!(again.autopilot, autopilot);
    let off = parse(&set("promote_after = \"off\"\nremove_dead_after = \"off\"")).unwrap();
    assert_eq!(off.autopilot, parse(THREE).unwrap().autopilot, "both are off by default");
    let again = ClusterConfig::parse(&off.to_toml(), Path::new("/y/cluster.toml")).unwrap();
    assert_eq!(again.autopilot, off.autopilot);
    for (line, what) in [
        ("promote_after = \"10\"", "promote_after = \"10\" is not a duration"),
        ("remove_dead_after = \"1s\"", "remove_dead_after = \"1s\" in [autopilot] is no time to wait"),
        ("remove_dead_after = \"never\"", "remove_dead_after = \"never\" is not a duration"),
        ("min_voters = 0", "min_voters = 0 in [autopilot] is out of range"),
    ] {
        let said = complaint("data = \"d\"", &format!("[autopilot]\n{line}"));
        assert!(said.starts_with(&format!("conf/cluster.toml:3: {what}")), "{said}");
    }
}

#[test]
fn age_of_the_history_is_a_number_with_a_unit() {
    for (text, ms) in [("7d", 604_800_000), ("36h", 129_600_000), ("90m", 5_400_000), ("61s", 61_000)] {
        let config =
            parse(&THREE.replace("data = \"d\"", &format!("[history]\nmax_age = \"{text}\""))).unwrap();
        assert_eq!(config.history.max_age_ms, ms);
        assert!(config.to_toml().contains("max_age = \""), "{}", config.to_toml());
        let again = ClusterConfig::parse(&config.to_toml(), Path::new("/y/cluster.toml")).unwrap();
        assert_eq!(again.history, config.history);
    }
}

#[test]
fn file_without_nodes_is_refused() {
    assert_eq!(
        parse("name = \"x\"\n").unwrap_err(),
        "conf/cluster.toml: there is no [[node]]; add one [[node]] with id, client and peer for each node (3 or 5)"
    );
}

#[test]
fn file_of_learners_only_is_refused() {
    let said = parse(&THREE.replace("id = ", "learner = true\nid = ")).unwrap_err();
    assert!(said.contains("every [[node]] is a learner"), "{said}");
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_line() {
    let said = complaint("id = 2", "id = = 2");
    assert!(said.starts_with("conf/cluster.toml:10: "), "{said}");
}

#[test]
fn value_of_a_wrong_type_is_refused_with_its_line() {
    let said = complaint("id = 2", "id = \"two\"");
    assert!(said.starts_with("conf/cluster.toml:10: invalid type"), "{said}");
}

#[test]
fn even_number_of_voters_gives_a_warning() {
    let text = format!("{THREE}\n[[node]]\nid = 4\nclient = \"127.0.0.1:2184\"\npeer = \"127.0.0.1:2284\"\n");
    let warnings = parse(&text).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with("4 voting nodes survive no more failures than 3"), "{warnings:?}");
    let learner = text.replace("id = 4", "id = 4\nlearner = true");
    assert!(parse(&learner).unwrap().warnings.is_empty());
}

#[test]
fn http_beyond_loopback_gives_a_warning() {
    let text = THREE.replace("id = 1", "id = 1\nhttp = \"0.0.0.0:8081\"");
    let warnings = parse(&text).unwrap().warnings;
    assert_eq!(
        warnings,
        [
            "http = \"0.0.0.0:8081\" of node 1 can be reached from other machines and asks for no password: set tls = true or token_file in [http]"
        ]
    );
}

#[test]
fn session_shorter_than_a_failover_gives_a_warning() {
    let text = THREE.replace("data = \"d\"", "[session]\nmin_timeout_ms = 400");
    assert!(
        parse(&text).unwrap().warnings[0]
            .starts_with("session min_timeout_ms = 400 is shorter than a failover")
    );
}

#[test]
fn sweeping_without_a_pause_is_refused() {
    assert_eq!(
        complaint("data = \"d\"\n", "[znodes]\nsweep_interval_ms = 0\n"),
        "conf/cluster.toml:3: sweep_interval_ms = 0 is out of range; use 100 (0.1 s) to 86400000 (a day), e.g. 60000"
    );
}

#[test]
fn a_damaged_file_is_refused_with_a_valid_line_or_has_nodes() {
    let good = include_str!("../../../../cluster.toml");
    let (mut spoiler, mut accepted, mut refused) = (Spoiler::new(3), 0, 0);
    for _ in 0..3_000 {
        let text = String::from_utf8_lossy(&spoiler.spoil(good.as_bytes())).into_owned();
        match ClusterConfig::parse(&text, Path::new("conf/cluster.toml")) {
            Ok(config) => {
                assert!(config.nodes.iter().all(|node| config.node(node.id).is_some()));
                accepted += 1;
            }
            Err(error) => {
                assert!(
                    error.line.is_none_or(|line| (1..=text.lines().count() + 1).contains(&line)),
                    "{error}"
                );
                refused += 1;
            }
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_printed_configuration_has_no_secrets() {
    let secrets = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\nsasl_users = { bob = \"hunter2\" }\n";
    let config = parse(&THREE.replace("data = \"d\"", secrets)).unwrap();
    let node = config.node(config.nodes[0].id).unwrap();
    for shown in
        [format!("{config:?}"), format!("{config:#?}"), format!("{node:?}"), format!("{:?}", node.client)]
    {
        assert!(shown.contains("bob") && shown.contains("(secret)"), "{shown}");
        assert!(!shown.contains("hunter2") && !shown.contains("D/InIHSb7yEE"), "{shown}");
    }
}
