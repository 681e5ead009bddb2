//! Parser and formatter of `/zookeeper/config`, a line per member and then the version; and of a new node's
//! part of cluster.toml, with the same listeners as the existing nodes. Pure.
//!
//! Invariant: where the existing nodes take only clients with TLS, the new node does too.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rowlock_coordinator::config::{ClusterConfig, NodeEntry};
use rowlock_wal::entry::Member;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub peer: String,
    pub client: String,
    pub votes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    pub servers: BTreeMap<u64, Server>,
    /// Changes with every change of the members.
    pub version: i64,
}

impl MemberList {
    pub fn parse(text: &str) -> Option<MemberList> {
        let mut servers = BTreeMap::new();
        let mut version = None;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(number) = line.strip_prefix("version=") {
                version = Some(i64::from_str_radix(number, 16).ok()?);
                continue;
            }
            let (id, rest) = line.strip_prefix("server.")?.split_once('=')?;
            servers.insert(id.parse().ok()?, Server::parse(rest)?);
        }
        Some(MemberList { servers, version: version? })
    }

    pub fn voters(&self) -> usize {
        self.servers.values().filter(|server| server.votes).count()
    }

    /// Returns the number of further voters that may fail while `up` voters answer; `None` without a
    /// majority.
    pub fn tolerates(&self, up: usize) -> Option<usize> {
        up.checked_sub(self.voters() / 2 + 1)
    }
}

impl Server {
    fn parse(text: &str) -> Option<Server> {
        let (nodes, client) = text.split_once(';')?;
        let (nodes, role) = nodes.rsplit_once(':')?;
        let (peer, _election) = nodes.rsplit_once(':')?;
        let votes = match role {
            "participant" => true,
            "observer" => false,
            _ => return None,
        };
        // ZooKeeper omits the client host if equal to the peer host.
        let client = match (client.contains(':'), peer.rsplit_once(':')) {
            (false, Some((host, _))) => format!("{host}:{client}"),
            _ => client.to_owned(),
        };
        Some(Server { peer: peer.to_owned(), client, votes })
    }

    /// Returns the line of the member `id` in the syntax of reconfig.
    pub fn line(&self, id: u64) -> Option<String> {
        let (_, port) = self.peer.rsplit_once(':')?;
        port.parse::<u16>().ok()?;
        let member = Member { peer_addr: self.peer.clone(), client_addr: self.client.clone() };
        let role = if self.votes { "participant" } else { "observer" };
        Some(format!("server.{id}={}:{role};{}", member.zookeeper_addr(), member.client_addr))
    }
}

/// Returns the `[[node]]` of a new learner, modeled on a node in `file` if the file is known. Without a file,
/// `by_tls` (this command's own connection) decides about TLS.
pub fn stanza(id: u64, server: &Server, file: Option<&ClusterConfig>, by_tls: bool) -> String {
    let like = file.and_then(|file| file.nodes.iter().find(|node| node.id.0 != id));
    let Server { peer, client, .. } = server;
    let mut out = format!("\n[[node]]\nid = {id}\n");
    // Writing to a String cannot fail.
    let mut line = |key: &str, address: &str| _ = writeln!(out, "{key} = {address:?}");
    let is_secure = like.map_or(by_tls, |like| like.client_addr.is_none());
    line(if is_secure { "secure_client" } else { "client" }, client);
    if let Some(secure) = like.and_then(|like| like.secure_client_addr.as_ref()).filter(|_| !is_secure) {
        line("secure_client", &beside(secure, like, client));
    }
    if let Some(node) = like {
        line("http", &beside(&node.http_addr, like, client));
        node.api_addr.iter().for_each(|api| line("api", &beside(api, like, client)));
    }
    if like.is_none() {
        out.push_str("# http, api: as the other nodes have them\n");
    }
    let _ = write!(out, "peer = {peer:?}\nlearner = true\n");
    out
}

/// Returns the address of a further listener of the new node: the same port distance from its client address
/// as in the model node, and the same host, unless the model has that listener on another host (loopback).
fn beside(address: &str, like: Option<&NodeEntry>, client: &str) -> String {
    let parts = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        Some((host.to_owned(), port.parse::<i32>().ok()?))
    };
    let moved = || {
        let (host, port) = parts(address)?;
        let (like_host, like_port) = parts(like?.any_client_addr())?;
        let (new_host, new_port) = parts(client)?;
        let port = u16::try_from(port - like_port + new_port).ok().filter(|port| *port > 0)?;
        Some(format!("{}:{port}", if host == like_host { new_host } else { host }))
    };
    moved().unwrap_or_else(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_text_of_the_cluster_is_read_and_written_again() {
        let text = "server.1=10.0.0.1:2281:2282:participant;10.0.0.1:2181\n\
                    server.2=[::1]:2282:2283:observer;[::1]:2182\nversion=1f";
        let members = MemberList::parse(text).unwrap();
        assert_eq!((members.version, members.voters()), (0x1f, 1));
        let lines: Vec<String> = members.servers.iter().map(|(id, one)| one.line(*id).unwrap()).collect();
        assert_eq!(lines, text.lines().take(2).collect::<Vec<_>>());
        assert_eq!(members.servers[&2].client, "[::1]:2182");
        for odd in
            ["server.1=a:1:2:participant;a:2", "server.x=a:1:2:participant;2\nversion=0", "version=z", "what"]
        {
            assert_eq!(MemberList::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_quorum_of_the_voters_is_needed() {
        let text = |count: u64| {
            let lines: String =
                (1..=count).map(|id| format!("server.{id}=h:1:2:participant;h:2\n")).collect();
            MemberList::parse(&format!("{lines}version=0")).unwrap()
        };
        assert_eq!(
            (text(3).tolerates(3), text(3).tolerates(2), text(3).tolerates(1)),
            (Some(1), Some(0), None)
        );
        assert_eq!((text(5).tolerates(5), text(4).tolerates(4)), (Some(2), Some(1)));
    }

    fn file(node: &str) -> ClusterConfig {
        let tls = "[tls]\ncert = \"c\"\nkey = \"k\"\npeer_ca = \"p\"\nclient_ca = \"a\"\n[peer]\nsecurity = \"mtls\"\n";
        let text = format!("{tls}[[node]]\nid = 1\npeer = \"db1:2281\"\n{node}");
        ClusterConfig::parse(&text, Path::new("cluster.toml")).unwrap()
    }

    fn new(client: &str) -> Server {
        Server { peer: "db7:2281".to_owned(), client: client.to_owned(), votes: false }
    }

    #[test]
    fn a_new_node_of_a_tls_only_cluster_opens_no_plain_port() {
        let file =
            file("secure_client = \"db1:2182\"\nhttp = \"127.0.0.1:8081\"\napi = \"127.0.0.1:8481\"\n");
        let text = stanza(7, &new("db7:2182"), Some(&file), true);
        assert_eq!(
            text,
            "\n[[node]]\nid = 7\nsecure_client = \"db7:2182\"\nhttp = \"127.0.0.1:8081\"\napi = \"127.0.0.1:8481\"\n\
             peer = \"db7:2281\"\nlearner = true\n"
        );
        assert!(stanza(7, &new("db7:2182"), None, true).contains("\nsecure_client = \"db7:2182\""));
        assert!(stanza(7, &new("db7:2182"), None, false).contains("\nclient = \"db7:2182\""));
    }

    #[test]
    fn on_one_machine_all_ports_move_alike_and_on_others_all_hosts() {
        let here = "client = \"127.0.0.1:2181\"\nhttp = \"127.0.0.1:8081\"\n";
        let text = stanza(4, &new("127.0.0.1:2184"), Some(&file(here)), false);
        assert!(
            text.contains("client = \"127.0.0.1:2184\"") && text.contains("http = \"127.0.0.1:8084\""),
            "{text}"
        );
        let both = "client = \"db1:2181\"\nsecure_client = \"db1:2182\"\nhttp = \"db1:8081\"\n";
        let text = stanza(4, &new("db4:2181"), Some(&file(both)), true);
        for line in ["\nclient = \"db4:2181\"", "secure_client = \"db4:2182\"", "http = \"db4:8081\""] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
