//! `api` of `[[node]]`: locks by HTTP. Who reaches that port could take and release them, so beyond loopback
//! it needs TLS and tokens.

use toml::Spanned;

use super::ConfigError;
use super::check::{Source, is_loopback, split};
use super::parse::RawCluster;

pub(super) fn check(source: &Source<'_>, raw: &RawCluster) -> Result<(), ConfigError> {
    let has_tls = raw.http.tls.as_ref().is_some_and(|tls| *tls.get_ref());
    if has_tls && raw.http.token_file.is_some() {
        return Ok(());
    }
    let addresses = raw.node.iter().filter_map(|node| node.get_ref().api.as_ref());
    let is_open = |api: &&Spanned<String>| split(api.get_ref()).is_ok_and(|(host, _)| !is_loopback(&host));
    match addresses.into_iter().find(is_open) {
        Some(api) => {
            let what =
                format!("api = \"{}\" takes locks from other machines without TLS and tokens", api.get_ref());
            Err(source.at(
                api,
                what,
                "set tls = true and token_file in [http], or give it a loopback address",
            ))
        }
        None => Ok(()),
    }
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
        let error = parse("127.0.0.1:8081", "").unwrap_err();
        assert!(error.what.contains("already"), "{error}");
    }
}
