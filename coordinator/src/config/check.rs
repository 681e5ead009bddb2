//! Rules for a `cluster.toml`; each refusal names the line and the remedy.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::config::duration;

use super::source::Source;
use super::{
    AuditConfig, ClientConfig, ClusterConfig, ConfigError, HistoryConfig, HttpConfig, NodeEntry, RaftConfig,
    SessionConfig, ZnodesConfig, cluster, node, security,
};

/// ZooKeeper's session ids carry the server's number in their top byte, where 0 and 0xff have other meanings.
const NODE_ID_MAX: u64 = 254;
/// Shortest interval of heartbeats. Shorter ones keep nodes busy without a gain.
const HEARTBEAT_LEAST_MS: u64 = 10;
/// A leader must be able to lose this many heartbeats before a follower stands for election.
const HEARTBEATS_PER_ELECTION: u64 = 3;
/// Beyond this time, busy polling burns a processor for events that are not close.
const BUSY_POLL_MAX_US: u64 = 10_000;

/// A sweep reads all containers and TTL znodes: a shorter pause would keep the leader busy.
const SWEEP_INTERVAL_MS: RangeInclusive<u64> = 100..=86_400_000;

/// Below this size, a file would hold a few seconds.
const AUDIT_MIN_BYTES: u64 = 64 << 10;
/// Each rotation renames all older files.
const AUDIT_KEEP_MAX: u32 = 1_000;

/// Below this size, sled's own overhead would take most of the space.
const HISTORY_MIN_BYTES: u64 = 64 << 20;
/// A minute to ten years.
const HISTORY_AGE_MS: RangeInclusive<u64> = 60_000..=3_650 * 86_400_000;

pub(super) fn check(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    if config.name.trim().is_empty() {
        return Err(source.at("name", "name is empty".to_owned(), "give the cluster a name"));
    }
    check_nodes(source, config)?;
    cluster::check(source, config)?;
    check_session(source, &config.session)?;
    check_raft(source, &config.raft)?;
    security::check(source, config)?;
    check_client(source, &config.client)?;
    check_znodes(source, config.znodes)?;
    node::check_locks(source, config.locks)?;
    check_history(source, config.history)?;
    check_http(source, &config.http)?;
    security::check_api(source, config)?;
    check_audit(source, &config.audit)?;
    cluster::check_backup(source, &config.backup)?;
    cluster::check_autopilot(source, config.autopilot)?;
    node::check_limits(source, config.limits)
}

fn check_nodes(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    let nodes = &config.nodes;
    if nodes.is_empty() {
        let remedy = "add one [[node]] with id, client and peer for each node (3 or 5)";
        return Err(source.error(None, "there is no [[node]]".to_owned(), remedy));
    }
    let mut lines: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let (id, key) = (node.id.0, format!("node.{at}.id"));
        if !(1..=NODE_ID_MAX).contains(&id) {
            let what = format!("node id {id} is out of range");
            return Err(source.at(&key, what, "number the nodes 1 to 254"));
        }
        let line = source.offset(&key).map_or(0, |offset| source.line(offset));
        if let Some(first) = lines.insert(id, line) {
            let what = format!("node id {id} appears twice (first on line {first})");
            return Err(source.at(&key, what, "give every [[node]] its own id"));
        }
    }
    if config.discovery.is_none() && nodes.iter().all(|node| node.learner) {
        let remedy = "remove `learner = true` from the nodes that shall vote";
        return Err(source.at("node.0", "every [[node]] is a learner".to_owned(), remedy));
    }
    check_addresses(source, nodes)
}

/// An address of a node, for the search for duplicates.
struct AddressUse<'a> {
    key: &'static str,
    id: u64,
    host: String,
    /// Offset of the address in the file. `None`: a default.
    offset: Option<usize>,
    address: &'a str,
    /// Machine of the node, as far as the file shows it: loopback addresses of different machines do not
    /// collide.
    machine: String,
}

fn check_addresses(source: &Source<'_>, nodes: &[NodeEntry]) -> Result<(), ConfigError> {
    check_listen(source, nodes)?;
    let mut taken: BTreeMap<(String, String), AddressUse<'_>> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let id = node.id.0;
        let client = node.any_client_addr();
        if client.is_empty() && node.client_addr.is_none() && node.secure_client_addr.is_none() {
            let what = format!("node {id} has no address for clients");
            let remedy = "add client, or secure_client with certificates in [tls]";
            return Err(source.at(&format!("node.{at}.id"), what, remedy));
        }
        let machine = split(client).map(|(host, _)| host).unwrap_or_default();
        let written = [
            ("client", node.client_addr.as_ref()),
            ("secure_client", node.secure_client_addr.as_ref()),
            ("peer", Some(&node.peer_addr)),
            ("api", node.api_addr.as_ref()),
            ("client_listen", node.client_listen.as_ref()),
            ("secure_client_listen", node.secure_client_listen.as_ref()),
            ("peer_listen", node.peer_listen.as_ref()),
            ("http", Some(&node.http_addr)),
        ];
        for (key, address) in written.into_iter().filter_map(|(key, address)| Some((key, address?))) {
            let offset = source.offset(&format!("node.{at}.{key}"));
            let (host, port) = split(address).map_err(|why| {
                source.error(
                    offset,
                    format!("{key} = \"{address}\" is not an address: {why}"),
                    ADDRESS_REMEDY,
                )
            })?;
            let own = is_loopback(&host) || key.ends_with("_listen");
            let machine = if own { machine.clone() } else { String::new() };
            let place = AddressUse { key, id, host, offset, address, machine };
            let slot = (format!("{}/{}", place.machine, place.host), port.to_string());
            if let Some(first) = taken.get(&slot) {
                return Err(duplicate(source, first, &place));
            }
            taken.insert(slot, place);
        }
    }
    Ok(())
}

/// Refuses a listen address without its public address.
fn check_listen(source: &Source<'_>, nodes: &[NodeEntry]) -> Result<(), ConfigError> {
    for (at, node) in nodes.iter().enumerate() {
        let pairs = [
            ("client", &node.client_addr, &node.client_listen),
            ("secure_client", &node.secure_client_addr, &node.secure_client_listen),
        ];
        for (key, address, listen) in pairs {
            if address.is_none() && listen.is_some() {
                let what = format!("{key}_listen of node {} has no {key} beside it", node.id);
                let remedy = "add the address under which clients find it";
                return Err(source.at(&format!("node.{at}.{key}_listen"), what, remedy));
            }
        }
    }
    Ok(())
}

const ADDRESS_REMEDY: &str = "write it as \"host:port\", e.g. \"127.0.0.1:2181\" or \"[::1]:2181\"";

fn duplicate(source: &Source<'_>, first: &AddressUse<'_>, second: &AddressUse<'_>) -> ConfigError {
    let what = format!(
        "{} of node {} takes {}, which is already the {} address of node {}",
        second.key, second.id, second.address, first.key, first.id
    );
    // A default address has no line of its own, so the error points at the written address.
    source.error(second.offset.or(first.offset), what, "give every listener its own port")
}

pub(super) fn split(address: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("the port is missing")?;
    let port: u16 = port.parse().map_err(|_| "the port is not a number from 1 to 65535")?;
    if port == 0 {
        return Err("port 0 would be another one at every start");
    }
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if bracketed {
        let inner = &host[1..host.len() - 1];
        inner.parse::<std::net::Ipv6Addr>().map_err(|_| "this is not an IPv6 address")?;
    } else if host.is_empty() {
        return Err("the host is missing");
    } else if host.contains(':') {
        return Err("an IPv6 address needs brackets");
    } else if host.contains(|c: char| c.is_whitespace() || c == '/' || c == '@' || c == ',') {
        return Err("this is not the name of a host");
    } else if host.starts_with(|c: char| c.is_ascii_digit())
        && host.split('.').all(|part| part.chars().all(|c| c.is_ascii_digit()))
        && host.parse::<std::net::Ipv4Addr>().is_err()
    {
        return Err("this is not an IPv4 address");
    }
    Ok((host.to_ascii_lowercase(), port))
}

pub(super) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_matches(['[', ']']);
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn check_session(source: &Source<'_>, session: &SessionConfig) -> Result<(), ConfigError> {
    let SessionConfig { min_timeout_ms: min, max_timeout_ms: max } = session;
    let offset = source.offset("session.min_timeout_ms").or(source.offset("session.max_timeout_ms"));
    if *min == 0 {
        let what = "min_timeout_ms = 0 would expire every session at once".to_owned();
        return Err(source.error(offset, what, "use at least a few election timeouts, e.g. 4000"));
    }
    if *max > i32::MAX as u32 {
        let what = format!("max_timeout_ms = {max} does not fit the protocol");
        return Err(source.at("session.max_timeout_ms", what, "use at most 2147483647"));
    }
    if min > max {
        let what = format!("min_timeout_ms = {min} is more than max_timeout_ms = {max}");
        return Err(source.error(offset, what, "raise max_timeout_ms or lower min_timeout_ms in [session]"));
    }
    Ok(())
}

fn check_raft(source: &Source<'_>, raft: &RaftConfig) -> Result<(), ConfigError> {
    let RaftConfig { heartbeat_ms, election_timeout_min_ms: min, election_timeout_max_ms: max, .. } = raft;
    let offset_of_either = |key: &str, other: &str| {
        source.offset(&format!("raft.{key}")).or(source.offset(&format!("raft.{other}")))
    };
    if *heartbeat_ms < HEARTBEAT_LEAST_MS {
        let what = format!(
            "heartbeat_ms = {heartbeat_ms} is less than the {HEARTBEAT_LEAST_MS} that a node can keep"
        );
        return Err(source.at("raft.heartbeat_ms", what, "use e.g. 40"));
    }
    if *min < HEARTBEATS_PER_ELECTION.saturating_mul(*heartbeat_ms) {
        let what =
            format!("election_timeout_min_ms = {min} is less than three times heartbeat_ms = {heartbeat_ms}");
        let offset = offset_of_either("election_timeout_min_ms", "heartbeat_ms");
        let remedy = "raise election_timeout_min_ms or lower heartbeat_ms in [raft]";
        return Err(source.error(offset, what, remedy));
    }
    if max <= min {
        let what =
            format!("election_timeout_max_ms = {max} is not more than election_timeout_min_ms = {min}");
        let offset = offset_of_either("election_timeout_max_ms", "election_timeout_min_ms");
        let remedy = "raise election_timeout_max_ms: nodes that wait equally long split the vote for ever";
        return Err(source.error(offset, what, remedy));
    }
    if raft.snapshot_every == 0 {
        let what = "snapshot_every = 0 would snapshot without pause".to_owned();
        return Err(source.at("raft.snapshot_every", what, "use e.g. 100000 log entries"));
    }
    if raft.busy_poll_us > BUSY_POLL_MAX_US {
        let what = format!("busy_poll_us = {} would keep a processor busy for little", raft.busy_poll_us);
        let remedy = "use 10000 (ten milliseconds) at most; 0 never polls";
        return Err(source.at("raft.busy_poll_us", what, remedy));
    }
    Ok(())
}

fn check_client(source: &Source<'_>, client: &ClientConfig) -> Result<(), ConfigError> {
    if client.max_connections == 0 {
        let what = "max_connections = 0 would refuse every client".to_owned();
        return Err(source.at("client.max_connections", what, "use e.g. 20000"));
    }
    let is_word = |w: &String| w == "*" || (w.len() == 4 && w.bytes().all(|b| b.is_ascii_lowercase()));
    if let Some(bad) = client.words.iter().find(|word| !is_word(word)) {
        let what = format!("words has \"{bad}\", which is not a four-letter word");
        return Err(source.at("client.words", what, "list words as \"ruok\", or \"*\" for all"));
    }
    let is_unfit = |user: &&String| user.is_empty() || user.contains(['"', '\\', ':']);
    if let Some(user) = client.sasl_users.keys().find(is_unfit) {
        let what = format!("sasl_users has \"{user}\", which cannot be a user's name");
        let offset = source.offset("client.sasl_users").or(source.offset("client.sasl_users_file"));
        return Err(source.error(offset, what, "use a name without quotes, backslashes and colons"));
    }
    if let Some(digest) = &client.super_digest
        && digest.strip_prefix("super:").is_none_or(|hash| hash.len() != 28)
    {
        let what = "super_digest is not \"super:\" and the base64 of a SHA-1".to_owned();
        let remedy = "make it with `rowlock auth new`";
        let offset = source.offset("client.super_digest").or(source.offset("client.super_digest_file"));
        return Err(source.error(offset, what, remedy));
    }
    Ok(())
}

fn check_znodes(source: &Source<'_>, znodes: ZnodesConfig) -> Result<(), ConfigError> {
    if SWEEP_INTERVAL_MS.contains(&znodes.sweep_interval_ms) {
        return Ok(());
    }
    let what = format!("sweep_interval_ms = {} is out of range", znodes.sweep_interval_ms);
    Err(source.at("znodes.sweep_interval_ms", what, "use 100 (0.1 s) to 86400000 (a day), e.g. 60000"))
}

fn check_audit(source: &Source<'_>, audit: &AuditConfig) -> Result<(), ConfigError> {
    if let Some(file) = audit.file.as_ref().filter(|file| file.file_name().is_none()) {
        let what = format!("file = \"{}\" in [audit] is not the name of a file", file.display());
        return Err(source.at(
            "audit.file",
            what,
            "use e.g. \"audit.log\", which is in the node's data folder",
        ));
    }
    if audit.max_bytes < AUDIT_MIN_BYTES {
        let what = format!("max_bytes = {} is too little for a file of the audit log", audit.max_bytes);
        return Err(source.at("audit.max_bytes", what, "use at least 65536"));
    }
    if audit.keep > AUDIT_KEEP_MAX {
        let what = format!("keep = {} in [audit] is too much", audit.keep);
        return Err(source.at("audit.keep", what, "use at most 1000"));
    }
    Ok(())
}

fn check_history(source: &Source<'_>, history: HistoryConfig) -> Result<(), ConfigError> {
    if !HISTORY_AGE_MS.contains(&history.max_age_ms) {
        let what = format!("max_age = \"{}\" is out of range", duration::text(history.max_age_ms));
        let remedy = "use a number and a unit, from \"1m\" to \"3650d\", e.g. \"7d\", \"12h\"";
        return Err(source.at("history.max_age", what, remedy));
    }
    if history.max_bytes < HISTORY_MIN_BYTES {
        let what = format!("max_bytes = {} is too little for a history", history.max_bytes);
        let remedy = "use at least 67108864 (64 MiB), or `enabled = false` in [history]";
        return Err(source.at("history.max_bytes", what, remedy));
    }
    Ok(())
}

fn check_http(source: &Source<'_>, http: &HttpConfig) -> Result<(), ConfigError> {
    let is_name = |host: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        !host.is_empty() && !host.ends_with('.') && host.chars().all(fits)
    };
    match http.hosts.iter().find(|host| !is_name(host)) {
        Some(host) => {
            let what = format!("hosts has \"{host}\", which is not the name of a host");
            Err(source.at("http.hosts", what, "list names without port, e.g. \"rowlock.internal\""))
        }
        None => Ok(()),
    }
}

/// Returns warnings about legal but unwise settings.
pub(super) fn warnings(config: &ClusterConfig) -> Vec<String> {
    let mut found = security::warnings(config);
    let listed = || config.nodes.iter().filter(|n| !n.learner).count();
    let voters = config.discovery.as_ref().map_or_else(listed, |it| it.founders().count());
    if voters.is_multiple_of(2) {
        found.push(format!(
            "{voters} voting nodes survive no more failures than {}, and need one more for a quorum: use an odd number",
            voters - 1
        ));
    }
    let failover_ms = 2 * config.raft.election_timeout_max_ms;
    if u64::from(config.session.min_timeout_ms) < failover_ms {
        found.push(format!(
            "session min_timeout_ms = {} is shorter than a failover can take ({failover_ms} ms): clients that ask for \
             so little lose their locks when the leader dies",
            config.session.min_timeout_ms
        ));
    }
    let unsafe_http = match (config.http.tls, &config.http.token_file) {
        (true, _) => None,
        (false, None) => Some("asks for no password: set tls = true or token_file in [http]"),
        (false, Some(_)) => Some("takes tokens that can be read on their way: set tls = true in [http]"),
    };
    let beyond = |node: &&NodeEntry| split(&node.http_addr).is_ok_and(|(host, _)| !is_loopback(&host));
    for node in config.nodes.iter().filter(beyond) {
        found.extend(unsafe_http.map(|what| {
            let (address, id) = (&node.http_addr, node.id);
            format!("http = \"{address}\" of node {id} can be reached from other machines and {what}")
        }));
    }
    found
}

#[cfg(test)]
mod tests;
