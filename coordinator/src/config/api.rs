//! Checks `api` of `[[node]]`: locks by HTTP. Any client of that port could take and release locks, so beyond
//! loopback the port needs TLS and tokens.

use super::check::{is_loopback, split};
use super::source::Source;
use super::{ClusterConfig, ConfigError};

pub(super) fn check(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    if config.http.tls && config.http.token_file.is_some() {
        return Ok(());
    }
    let is_open = |address: &str| split(address).is_ok_and(|(host, _)| !is_loopback(&host));
    for (at, node) in config.nodes.iter().enumerate() {
        let listeners =
            [("api", node.api_addr.as_deref()), ("http", config.http.api.then_some(node.http_addr.as_str()))];
        let open = listeners.into_iter().filter_map(|(key, address)| Some((key, address?)));
        if let Some((key, address)) = open.into_iter().find(|(_, address)| is_open(address)) {
            let what =
                format!("{key} = \"{address}\" takes locks from other machines without TLS and tokens");
            let remedy = "set tls = true and token_file in [http], or give it a loopback address";
            return Err(source.at(&format!("node.{at}.{key}"), what, remedy));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{ClusterConfig, ConfigError};

    fn parse(api: &str, http: &str) -> Result<ClusterConfig, ConfigError> {
        let node = format!("[[node]]\nid = 1\nclient = \"h:2181\"\npeer = \"h:2281\"\napi = \"{api}\"\n");
        let tls = "[tls]\ncert = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\n";
        ClusterConfig::parse(&format!("{tls}{http}{node}"), Path::new("cluster.toml"))
    }

    #[test]
    fn locks_by_http_from_other_machines_need_tls_and_tokens() {
        let closed = "[http]\ntls = true\ntoken_file = \"tokens\"\n";
        let config = parse("db1:8443", closed).unwrap();
        assert_eq!(config.nodes[0].api_addr.as_deref(), Some("db1:8443"));
        assert_eq!(ClusterConfig::parse(&config.to_toml(), Path::new("x")).unwrap().nodes, config.nodes);
        for half in ["", "[http]\ntls = true\n", "[http]\ntoken_file = \"tokens\"\n"] {
            let error = parse("db1:8443", half).unwrap_err();
            assert!(error.what.contains("without TLS and tokens"), "{error}");
            parse("127.0.0.1:8443", half).unwrap();
            parse("[::1]:8443", half).unwrap();
        }
        let at_http = "[http]\napi = true\n";
        let config = parse("127.0.0.1:8443", at_http).unwrap();
        assert!(config.http.api && ClusterConfig::parse(&config.to_toml(), Path::new("x")).unwrap().http.api);
        let error = parse("127.0.0.1:8443\"\nhttp = \"db1:8081", at_http).unwrap_err();
        assert!(error.what.starts_with("http = \"db1:8081\" takes locks"), "{error}");
        let error = parse("127.0.0.1:8081", "").unwrap_err();
        assert!(error.what.contains("already"), "{error}");
    }
}
