//! Conversion between the text of `cluster.toml` and `ClusterConfig`. Checks only the form; `check.rs` has
//! the rules.

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use toml::de::DeTable;

use super::source::{ConfigError, Source, error};
use super::{ClusterConfig, check, security};

/// Parses and checks the text. `read` reads the files that hold secrets.
pub(super) fn parse(
    text: &str,
    path: &Path,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<ClusterConfig, ConfigError> {
    let malformed = |e: toml::de::Error| form_error(text, path, &e);
    let table = DeTable::parse(text).map_err(malformed)?;
    let config = ClusterConfig::deserialize(toml::Deserializer::from(table.clone()));
    let mut config = config.map_err(malformed)?;
    let source = Source::new(text, path, table);
    security::read_into(&source, &mut config.client, read)?;
    fill_in(&source, &mut config);
    check::check(&source, &config)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    map_paths(&mut config, |path| folder.join(path));
    config.warnings = check::warnings(&config);
    Ok(config)
}

/// Returns whether the text itself holds secrets. False for an unreadable text, which the parser refuses
/// later.
pub(super) fn has_secrets(text: &str) -> bool {
    let config: Result<ClusterConfig, _> = toml::from_str(text);
    config.is_ok_and(|config| config.client.super_digest.is_some() || !config.client.sasl_users.is_empty())
}

fn form_error(text: &str, path: &Path, e: &toml::de::Error) -> ConfigError {
    let message = e.message().lines().next().unwrap_or("cannot be read as TOML");
    let span = e.span();
    // Error of one of our own value types: `crate::config::duration`.
    if let (Some((what, remedy)), Some(span)) = (message.split_once("; "), &span)
        && what.starts_with("is not")
    {
        let key = text[..span.start].rsplit(['\n', '{', ',']).next().unwrap_or_default();
        let what = format!("{} = {} {what}", key.trim_matches([' ', '\t', '=']), &text[span.clone()]);
        return error(text, path, Some(span.start), what, remedy);
    }
    error(text, path, span.map(|span| span.start), message.to_owned(), remedy_for(message))
}

fn remedy_for(message: &str) -> &'static str {
    if message.starts_with("unknown field") {
        "correct the spelling of this key or remove it"
    } else if message.starts_with("unknown variant") {
        "use one of these words"
    } else if message.starts_with("missing field") {
        "add this key"
    } else if message.starts_with("invalid") {
        "see cluster.toml in the repository for the form of this value"
    } else {
        "correct the line (the file is TOML: https://toml.io)"
    }
}

/// Fills in the defaults with dependencies on other values.
fn fill_in(source: &Source<'_>, config: &mut ClusterConfig) {
    if source.offset("name").is_none() {
        "rowlock".clone_into(&mut config.name);
    }
    for (at, node) in config.nodes.iter_mut().enumerate() {
        if source.offset(&format!("node.{at}.http")).is_none() {
            // Loopback unless the file says otherwise: without authentication in `[http]`, the routes have
            // none.
            node.http_addr = format!("127.0.0.1:{}", node.id.0.saturating_add(8_080));
        }
        if source.offset(&format!("node.{at}.data")).is_none() {
            let root = config.data.as_deref().unwrap_or(Path::new("data"));
            node.data_dir = root.join(format!("node-{}", node.id));
        }
    }
    config.data = None;
}

/// Applies `change` to the paths that are relative to the folder of the file.
fn map_paths(config: &mut ClusterConfig, change: impl Fn(&Path) -> PathBuf) {
    config.nodes.iter_mut().for_each(|node| node.data_dir = change(&node.data_dir));
    config.tls = config.tls.as_ref().map(|files| files.map(&change));
    config.http.token_file = config.http.token_file.as_deref().map(&change);
}

pub(super) fn print(config: &ClusterConfig) -> String {
    let mut config = config.clone();
    // The folder of the file may have a name that is not UTF-8.
    map_paths(&mut config, |path| PathBuf::from(path.to_string_lossy().into_owned()));
    toml::to_string(&config).expect("Invariant: every value has a form in TOML")
}
