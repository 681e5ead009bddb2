//! Tests of `[tls]`, `[peer]`, and listeners for clients with TLS.

use super::*;

const TLS: &str = "[tls]\ncert = \"tls/{id}.pem\"\nkey = \"/etc/{id}/key\"\n";

#[test]
fn certificate_paths_contain_the_nodes_number() {
    let text = format!("{THREE}{TLS}peer_ca = \"ca.pem\"\n[peer]\nsecurity = \"mtls\"\n");
    let config = parse(&text).unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let files = config.node(NodeId(2)).unwrap().file.tls.unwrap();
    let wanted = TlsFiles {
        cert: "conf/tls/2.pem".into(),
        key: "/etc/2/key".into(),
        peer_ca: Some("conf/ca.pem".into()),
        client_ca: None,
        crl: None,
    };
    assert_eq!(files, wanted);
}

#[test]
fn security_without_the_certificates_for_it_is_refused() {
    let refused = |more: &str| parse(&format!("{THREE}{more}")).expect_err("the file is wrong");
    for word in ["mtls", "both"] {
        let peer = format!("[peer]\nsecurity = \"{word}\"\n");
        let said = refused(&peer);
        assert!(said.contains(&format!("security = \"{word}\" needs certificates; add [tls]")), "{said}");
        let said = refused(&format!("{TLS}{peer}"));
        assert!(
            said.ends_with("needs the authority of the nodes' certificates; add peer_ca to [tls]"),
            "{said}"
        );
    }
    let said = refused("[peer]\nsecurity = \"tls\"\n");
    assert!(said.contains("unknown variant `tls`, expected one of `none`, `both`, `mtls`"), "{said}");
    let said = refused("[tls]\ncert = \"a\"\n");
    assert!(said.contains("missing field `key`"), "{said}");
    let said = refused(&TLS.replace("tls/{id}", "tls/{node}"));
    assert!(said.contains("cert = \"tls/{node}.pem\" has a brace that is not of {id}"), "{said}");
    let said = refused(&TLS.replace("tls/{id}.pem", ""));
    assert!(said.contains("cert is empty"), "{said}");
}

#[test]
fn a_node_may_listen_with_tls_beside_or_instead_of_plain() {
    let secure = "secure_client = \"127.0.0.1:2192\"\nsecure_client_listen = \"0.0.0.0:2192\"\n";
    let plain = "client = \"127.0.0.1:2182\"\n";
    let tls = format!("{TLS}client_ca = \"ca.pem\"\n");
    for (addresses, found, open) in
        [(secure.to_owned(), "127.0.0.1:2192", 2), (format!("{plain}{secure}"), "127.0.0.1:2182", 0)]
    {
        let config = parse(&format!("{}{tls}", THREE.replace(plain, &addresses))).unwrap();
        let is_told = |warning: &&String| {
            warning.contains("takes clients without TLS, and node 2 takes them by TLS only")
        };
        assert_eq!(config.warnings.iter().filter(is_told).count(), open, "{:?}", config.warnings);
        assert_eq!(config.warnings.len(), open);
        let node = config.node(NodeId(2)).unwrap();
        assert_eq!(node.secure_client_addr.as_deref(), Some("0.0.0.0:2192"));
        assert_eq!(node.nodes[1].any_client_addr(), found);
        assert_eq!(node.client_addr.is_some(), addresses.contains(plain));
    }
}

#[test]
fn a_tls_listener_without_its_files_is_refused_by_name() {
    let plain = "client = \"127.0.0.1:2182\"\n";
    let secure = format!("{plain}secure_client = \"127.0.0.1:2192\"\n");
    let refused = |addresses: &str, more: &str| {
        parse(&format!("{}{more}", THREE.replace(plain, addresses))).expect_err("the file is wrong")
    };
    let said = refused("", "");
    assert!(said.contains("cluster.toml:10: node 2 has no address for clients"), "{said}");
    let said = refused("client_listen = \"127.0.0.1:2182\"\nsecure_client = \"a:1\"\n", "");
    assert!(said.contains("client_listen of node 2 has no client beside it"), "{said}");
    let said = refused(&secure, "");
    assert!(
        said.ends_with("secure_client needs certificates; add [tls] with cert, key and client_ca"),
        "{said}"
    );
    let said = refused(&secure, TLS);
    assert!(
        said.contains("client_auth = \"need\" needs the authority of the clients' certificates"),
        "{said}"
    );
    assert!(
        parse(&format!("{}{TLS}[client]\nclient_auth = \"none\"\n", THREE.replace(plain, &secure))).is_ok()
    );
    let said = refused(&secure, "[client]\nx509_superusers = [\"admin\"]\n");
    assert!(said.contains("x509_superusers has \"admin\", which is no subject of a certificate"), "{said}");
    for key in ["client_auth = \"want\"", "x509_superusers = [\"CN=admin\"]"] {
        let said = refused(plain, &format!("[client]\n{key}\n"));
        assert!(said.contains("counts for clients with TLS, and no node listens for them"), "{said}");
    }
    let said = refused(&secure.replace("2192", "2281"), TLS);
    assert!(said.contains("2281") && said.contains("already the"), "{said}");
}

#[test]
fn unused_certificates_and_a_change_over_give_warnings() {
    let warnings = |more: &str| parse(&format!("{THREE}{TLS}{more}")).unwrap().warnings;
    for more in ["", "[peer]\nsecurity = \"none\"\n"] {
        assert!(warnings(more)[0].starts_with("nothing uses the certificates of [tls]"));
    }
    let both = warnings("peer_ca = \"ca.pem\"\n[peer]\nsecurity = \"both\"\n");
    assert!(
        both[0].starts_with("security = \"both\" believes any host that reaches the nodes' port"),
        "{both:?}"
    );
}

#[test]
fn open_locks_by_http_beside_require_auth_give_a_warning() {
    let api = THREE.replace("[[node]]\nid = 1\n", "[[node]]\nid = 1\napi = \"127.0.0.1:8481\"\n");
    let warnings = |more: &str| parse(&format!("{api}{more}")).unwrap().warnings;
    let auth = "[client]\nrequire_auth = true\n";
    assert!(warnings(auth)[0].starts_with("require_auth = true asks nothing of locks by HTTP"));
    for fine in ["", &format!("{auth}[http]\ntoken_file = \"tokens\"\n")] {
        assert_eq!(warnings(fine), [""; 0]);
    }
}

#[test]
fn http_by_tls_needs_certificates_and_a_way_to_authenticate() {
    let http = "[http]\ntls = true\n";
    let refused = |more: &str| parse(&format!("{THREE}{more}")).expect_err("the file is wrong");
    let said = refused(http);
    assert!(said.contains("tls = true in [http] needs certificates; add [tls]"), "{said}");
    let said = refused(&format!("{TLS}{http}"));
    assert!(said.ends_with("add client_ca to [tls], or token_file to [http]"), "{said}");
    let said = refused("[http]\ntoken_file = \"\"\n");
    assert!(said.contains("token_file is empty"), "{said}");
    for more in
        [format!("{TLS}client_ca = \"ca.pem\"\n{http}"), format!("{TLS}{http}token_file = \"tokens\"\n")]
    {
        let config = parse(&format!("{THREE}{more}")).unwrap();
        assert!(config.warnings.is_empty() && config.http.is_closed(), "{:?}", config.warnings);
        assert_eq!(ClusterConfig::parse(&config.to_toml(), Path::new("cluster.toml")).unwrap(), config);
    }
    let open = THREE.replace("[[node]]\nid = 1\n", "[[node]]\nid = 1\nhttp = \"10.0.0.1:8081\"\n");
    let config = parse(&format!("{open}[http]\ntoken_file = \"tokens\"\n")).unwrap();
    assert_eq!(config.http.token_file.as_deref(), Some("conf/tokens".as_ref()));
    assert!(
        config.warnings[0].ends_with("takes tokens that can be read on their way: set tls = true in [http]")
    );
}
