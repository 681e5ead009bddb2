//! The rules a `cluster.toml` must obey, each refusal with its line and its remedy.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use toml::Spanned;

use super::parse::{
    RawAudit, RawClient, RawCluster, RawHistory, RawHttp, RawNode, RawRaft, RawSession, RawZnodes,
    default_http, duration_ms,
};
use super::{ClusterConfig, ConfigError, NodeEntry, RaftConfig, SessionConfig, security};

/// ZooKeeper's session ids carry the server's number in their top byte, where 0 and 0xff have other meanings.
const NODE_ID_MAX: i64 = 254;
/// Raft looks every 25 ms whether a heartbeat is due; the shortest election must take longer.
const HEARTBEAT_LEAST_MS: u64 = 10;
/// A leader must be able to lose this many heartbeats before a follower stands for election.
const HEARTBEATS_PER_ELECTION: u64 = 3;
/// A processor that is kept awake for longer than this is not awake for what comes soon.
const BUSY_POLL_MAX_US: u64 = 10_000;

/// A sweep looks at all containers and TTL znodes: a shorter pause would keep the leader busy with it.
const SWEEP_INTERVAL_MS: RangeInclusive<u64> = 100..=86_400_000;

/// Below, a file would have a few seconds.
const AUDIT_MIN_BYTES: u64 = 64 << 10;
/// With each full file all older ones get another name.
const AUDIT_KEEP_MAX: u32 = 1_000;

/// Below, sled's own needs would be most of it.
const HISTORY_MIN_BYTES: u64 = 64 << 20;
/// A minute to ten years.
const HISTORY_AGE_MS: RangeInclusive<u64> = 60_000..=3_650 * 86_400_000;

/// The text that errors point into.
pub(super) struct Source<'a> {
    pub text: &'a str,
    pub path: &'a Path,
}

impl Source<'_> {
    pub fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|b| **b == b'\n').count()
    }

    pub fn error(&self, at: Option<usize>, what: String, remedy: &str) -> ConfigError {
        ConfigError {
            file: self.path.to_owned(),
            line: at.map(|offset| self.line(offset)),
            what,
            remedy: remedy.to_owned(),
        }
    }

    pub(super) fn at<T>(&self, value: &Spanned<T>, what: String, remedy: &str) -> ConfigError {
        self.error(Some(value.span().start), what, remedy)
    }
}

pub(super) fn check_raw(source: &Source<'_>, raw: &RawCluster) -> Result<(), ConfigError> {
    if let Some(name) = raw.name.as_ref().filter(|n| n.get_ref().trim().is_empty()) {
        return Err(source.at(name, "name is empty".to_owned(), "give the cluster a name"));
    }
    check_nodes(source, &raw.node, raw.cluster.is_some())?;
    raw.cluster.as_ref().map_or(Ok(()), |cluster| cluster.check(source, &raw.node))?;
    check_session(source, &raw.session)?;
    check_raft(source, &raw.raft)?;
    security::check(source, raw)?;
    check_client(source, &raw.client)?;
    check_znodes(source, &raw.znodes)?;
    check_history(source, &raw.history)?;
    check_http(source, &raw.http)?;
    super::api::check(source, raw)?;
    check_audit(source, &raw.audit)?;
    raw.backup.check(source)?;
    raw.upgrade.check(source)?;
    raw.autopilot.check(source)?;
    raw.log.check(source)?;
    raw.limits.check(source)
}

fn check_nodes(
    source: &Source<'_>,
    nodes: &[Spanned<RawNode>],
    others_are_found: bool,
) -> Result<(), ConfigError> {
    if nodes.is_empty() {
        let remedy = "add one [[node]] with id, client and peer for each node (3 or 5)";
        return Err(source.error(None, "there is no [[node]]".to_owned(), remedy));
    }
    let mut ids: BTreeMap<i64, usize> = BTreeMap::new();
    for node in nodes {
        let id = &node.get_ref().id;
        if !(1..=NODE_ID_MAX).contains(id.get_ref()) {
            let what = format!("node id {} is out of range", id.get_ref());
            return Err(source.at(id, what, "number the nodes 1 to 254"));
        }
        let line = source.line(id.span().start);
        if let Some(first) = ids.insert(*id.get_ref(), line) {
            let what = format!("node id {} appears twice (first on line {first})", id.get_ref());
            return Err(source.at(id, what, "give every [[node]] its own id"));
        }
    }
    if !others_are_found && nodes.iter().all(|n| n.get_ref().learner) {
        let remedy = "remove `learner = true` from the nodes that shall vote";
        return Err(source.at(&nodes[0], "every [[node]] is a learner".to_owned(), remedy));
    }
    check_addresses(source, nodes)
}

/// One address of one node, for the search for duplicates.
struct Place<'a> {
    key: &'static str,
    id: i64,
    host: String,
    span: Option<Range<usize>>,
    address: &'a str,
    /// The machine as far as the file tells: loopback addresses of different machines do not collide.
    machine: String,
}

fn check_addresses(source: &Source<'_>, nodes: &[Spanned<RawNode>]) -> Result<(), ConfigError> {
    check_listen(source, nodes)?;
    let defaults: Vec<String> = nodes
        .iter()
        .map(|n| default_http(u64::try_from(*n.get_ref().id.get_ref()).unwrap_or_default()))
        .collect();
    let mut taken: BTreeMap<(String, String), Place<'_>> = BTreeMap::new();
    for (node, default) in nodes.iter().zip(&defaults) {
        let node = node.get_ref();
        let Some(client) = node.client.as_ref().or(node.secure_client.as_ref()) else {
            let what = format!("node {} has no address for clients", node.id.get_ref());
            return Err(source.at(&node.id, what, "add client, or secure_client with certificates in [tls]"));
        };
        let machine = split(client.get_ref()).map(|(host, _)| host).unwrap_or_default();
        let http = node.http.as_ref().map_or(default, |h| h.get_ref());
        let written = [
            ("client", node.client.as_ref()),
            ("secure_client", node.secure_client.as_ref()),
            ("peer", Some(&node.peer)),
            ("api", node.api.as_ref()),
            ("client_listen", node.client_listen.as_ref()),
            ("secure_client_listen", node.secure_client_listen.as_ref()),
            ("peer_listen", node.peer_listen.as_ref()),
        ];
        let written = written.into_iter().filter_map(|(key, a)| Some((key, a?.get_ref(), Some(a?.span()))));
        for (key, address, span) in written.chain([("http", http, node.http.as_ref().map(Spanned::span))]) {
            let start = span.as_ref().map(|s| s.start);
            let (host, port) = split(address).map_err(|why| {
                source.error(start, format!("{key} = \"{address}\" is not an address: {why}"), ADDRESS_REMEDY)
            })?;
            let id = *node.id.get_ref();
            let own = is_loopback(&host) || key.ends_with("_listen");
            let machine = if own { machine.clone() } else { String::new() };
            let place = Place { key, id, host, span, address, machine };
            let slot = (format!("{}/{}", place.machine, place.host), port.to_string());
            if let Some(first) = taken.get(&slot) {
                return Err(duplicate(source, first, &place));
            }
            taken.insert(slot, place);
        }
    }
    Ok(())
}

/// Where to listen says nothing without the address under which others know it.
fn check_listen(source: &Source<'_>, nodes: &[Spanned<RawNode>]) -> Result<(), ConfigError> {
    for node in nodes.iter().map(Spanned::get_ref) {
        let pairs = [
            ("client", &node.client, &node.client_listen),
            ("secure_client", &node.secure_client, &node.secure_client_listen),
        ];
        for (key, address, listen) in pairs {
            if let (None, Some(listen)) = (address, listen) {
                let what = format!("{key}_listen of node {} has no {key} beside it", node.id.get_ref());
                return Err(source.at(listen, what, "add the address under which clients find it"));
            }
        }
    }
    Ok(())
}

const ADDRESS_REMEDY: &str = "write it as \"host:port\", e.g. \"127.0.0.1:2181\" or \"[::1]:2181\"";

fn duplicate(source: &Source<'_>, first: &Place<'_>, second: &Place<'_>) -> ConfigError {
    let what = format!(
        "{} of node {} takes {}, which is already the {} address of node {}",
        second.key, second.id, second.address, first.key, first.id
    );
    // A default address has no line of its own: point at the one that is written.
    let span = second.span.as_ref().or(first.span.as_ref());
    source.error(span.map(|s| s.start), what, "give every listener its own port")
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

fn check_session(source: &Source<'_>, raw: &RawSession) -> Result<(), ConfigError> {
    let default = SessionConfig::default();
    let min = raw.min_timeout_ms.as_ref().map_or(default.min_timeout_ms, |v| *v.get_ref());
    let max = raw.max_timeout_ms.as_ref().map_or(default.max_timeout_ms, |v| *v.get_ref());
    let place = raw.min_timeout_ms.as_ref().or(raw.max_timeout_ms.as_ref()).map(|v| v.span().start);
    if min == 0 {
        let what = "min_timeout_ms = 0 would expire every session at once".to_owned();
        return Err(source.error(place, what, "use at least a few election timeouts, e.g. 4000"));
    }
    if max > i32::MAX as u32 {
        let at = raw.max_timeout_ms.as_ref().map(|v| v.span().start);
        let what = format!("max_timeout_ms = {max} does not fit the protocol");
        return Err(source.error(at, what, "use at most 2147483647"));
    }
    if min > max {
        let what = format!("min_timeout_ms = {min} is more than max_timeout_ms = {max}");
        return Err(source.error(place, what, "raise max_timeout_ms or lower min_timeout_ms in [session]"));
    }
    Ok(())
}

fn check_raft(source: &Source<'_>, raw: &RawRaft) -> Result<(), ConfigError> {
    let default = RaftConfig::default();
    let heartbeat = raw.heartbeat_ms.as_ref().map_or(default.heartbeat_ms, |v| *v.get_ref());
    let min = raw.election_timeout_min_ms.as_ref().map_or(default.election_timeout_min_ms, |v| *v.get_ref());
    let max = raw.election_timeout_max_ms.as_ref().map_or(default.election_timeout_max_ms, |v| *v.get_ref());
    let at = |value: &Option<Spanned<u64>>, other: &Option<Spanned<u64>>| {
        value.as_ref().or(other.as_ref()).map(|v| v.span().start)
    };
    if heartbeat < HEARTBEAT_LEAST_MS {
        let what =
            format!("heartbeat_ms = {heartbeat} is less than the {HEARTBEAT_LEAST_MS} that a node can keep");
        return Err(source.error(at(&raw.heartbeat_ms, &None), what, "use e.g. 40"));
    }
    if min < HEARTBEATS_PER_ELECTION.saturating_mul(heartbeat) {
        let what =
            format!("election_timeout_min_ms = {min} is less than three times heartbeat_ms = {heartbeat}");
        let place = at(&raw.election_timeout_min_ms, &raw.heartbeat_ms);
        return Err(source.error(
            place,
            what,
            "raise election_timeout_min_ms or lower heartbeat_ms in [raft]",
        ));
    }
    if max <= min {
        let what =
            format!("election_timeout_max_ms = {max} is not more than election_timeout_min_ms = {min}");
        let place = at(&raw.election_timeout_max_ms, &raw.election_timeout_min_ms);
        let remedy = "raise election_timeout_max_ms: nodes that wait equally long split the vote for ever";
        return Err(source.error(place, what, remedy));
    }
    if let Some(every) = raw.snapshot_every.as_ref().filter(|v| *v.get_ref() == 0) {
        let what = "snapshot_every = 0 would snapshot without pause".to_owned();
        return Err(source.at(every, what, "use e.g. 100000 log entries"));
    }
    if let Some(window) = raw.busy_poll_us.as_ref().filter(|v| *v.get_ref() > BUSY_POLL_MAX_US) {
        let what = format!("busy_poll_us = {} would keep a processor busy for little", window.get_ref());
        return Err(source.at(window, what, "use 10000 (ten milliseconds) at most; 0 never polls"));
    }
    Ok(())
}

fn check_client(source: &Source<'_>, raw: &RawClient) -> Result<(), ConfigError> {
    if let Some(max) = raw.max_connections.as_ref().filter(|v| *v.get_ref() == 0) {
        let what = "max_connections = 0 would refuse every client".to_owned();
        return Err(source.at(max, what, "use e.g. 20000"));
    }
    if let Some(words) = &raw.words {
        let valid = |w: &String| w == "*" || (w.len() == 4 && w.bytes().all(|b| b.is_ascii_lowercase()));
        if let Some(bad) = words.get_ref().iter().find(|w| !valid(w)) {
            let what = format!("words has \"{bad}\", which is not a four-letter word");
            return Err(source.at(words, what, "list words as \"ruok\", or \"*\" for all"));
        }
    }
    let unfit =
        |user: &&Spanned<String>| user.get_ref().is_empty() || user.get_ref().contains(['"', '\\', ':']);
    if let Some(user) = raw.sasl_users.keys().find(unfit) {
        let what = format!("sasl_users has \"{}\", which cannot be a user's name", user.get_ref());
        return Err(source.at(user, what, "use a name without quotes, backslashes and colons"));
    }
    if let Some(digest) = &raw.super_digest
        && digest.get_ref().strip_prefix("super:").is_none_or(|hash| hash.len() != 28)
    {
        let what = "super_digest is not \"super:\" and the base64 of a SHA-1".to_owned();
        let remedy = "make it from `printf 'super:PASSWORD' | openssl dgst -sha1 -binary | base64`";
        return Err(source.at(digest, what, remedy));
    }
    Ok(())
}

fn check_znodes(source: &Source<'_>, raw: &RawZnodes) -> Result<(), ConfigError> {
    match &raw.sweep_interval_ms {
        Some(every) if !SWEEP_INTERVAL_MS.contains(every.get_ref()) => {
            let what = format!("sweep_interval_ms = {} is out of range", every.get_ref());
            Err(source.at(every, what, "use 100 (0.1 s) to 86400000 (a day), e.g. 60000"))
        }
        _ => Ok(()),
    }
}

fn check_audit(source: &Source<'_>, raw: &RawAudit) -> Result<(), ConfigError> {
    if let Some(file) = raw.file.as_ref().filter(|file| file.get_ref().file_name().is_none()) {
        let what = format!("file = \"{}\" in [audit] is not the name of a file", file.get_ref().display());
        return Err(source.at(file, what, "use e.g. \"audit.log\", which is in the node's data folder"));
    }
    if let Some(bytes) = raw.max_bytes.as_ref().filter(|bytes| *bytes.get_ref() < AUDIT_MIN_BYTES) {
        let what = format!("max_bytes = {} is too little for a file of the audit log", bytes.get_ref());
        return Err(source.at(bytes, what, "use at least 65536"));
    }
    match raw.keep.as_ref().filter(|keep| *keep.get_ref() > AUDIT_KEEP_MAX) {
        Some(keep) => {
            let what = format!("keep = {} in [audit] is too much", keep.get_ref());
            Err(source.at(keep, what, "use at most 1000"))
        }
        None => Ok(()),
    }
}

fn check_history(source: &Source<'_>, raw: &RawHistory) -> Result<(), ConfigError> {
    if let Some(age) = &raw.max_age {
        let remedy = "use a number and a unit, from \"1m\" to \"3650d\", e.g. \"7d\", \"12h\"";
        match duration_ms(age.get_ref()) {
            None => {
                return Err(source.at(
                    age,
                    format!("max_age = \"{}\" is not a duration", age.get_ref()),
                    remedy,
                ));
            }
            Some(ms) if !HISTORY_AGE_MS.contains(&ms) => {
                return Err(source.at(
                    age,
                    format!("max_age = \"{}\" is out of range", age.get_ref()),
                    remedy,
                ));
            }
            Some(_) => {}
        }
    }
    if let Some(bytes) = raw.max_bytes.as_ref().filter(|bytes| *bytes.get_ref() < HISTORY_MIN_BYTES) {
        let what = format!("max_bytes = {} is too little for a history", bytes.get_ref());
        let remedy = "use at least 67108864 (64 MiB), or `enabled = false` in [history]";
        return Err(source.at(bytes, what, remedy));
    }
    Ok(())
}

fn check_http(source: &Source<'_>, raw: &RawHttp) -> Result<(), ConfigError> {
    let is_name = |host: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        !host.is_empty() && !host.ends_with('.') && host.chars().all(fits)
    };
    match raw.hosts.iter().find(|host| !is_name(host.get_ref())) {
        Some(host) => {
            let what = format!("hosts has \"{}\", which is not the name of a host", host.get_ref());
            Err(source.at(host, what, "list names without port, e.g. \"rowlock.internal\""))
        }
        None => Ok(()),
    }
}

/// What is allowed and yet unwise.
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
