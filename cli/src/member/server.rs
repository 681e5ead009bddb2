//! Parser and formatter of `/zookeeper/config`: a line per member, then the version. Pure.

use std::collections::BTreeMap;

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

#[cfg(test)]
mod tests {
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
}
