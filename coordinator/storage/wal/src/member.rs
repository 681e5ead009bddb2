//! Addresses of a cluster member. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A member's entry in the membership: the addresses for nodes and clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` for the other nodes. A member from a reconfiguration in ZooKeeper's terms may have a
    /// second port (`host:port:election`), if the port differs from the default of
    /// [`zookeeper_addr`](Member::zookeeper_addr). No node dials the second port.
    pub peer_addr: String,
    pub client_addr: String,
}

impl Member {
    pub fn dial_addr(&self) -> String {
        let (host, port, _) = self.parts();
        format!("{host}:{port}")
    }

    pub fn host(&self) -> &str {
        self.parts().0
    }

    /// Returns `host:quorum:election`, as ZooKeeper writes an address. No node listens at the election port,
    /// but ZooKeeper's parser, which its clients share, refuses a line with two equal ports.
    pub fn zookeeper_addr(&self) -> String {
        let (host, port, election) = self.parts();
        match (election, port.parse()) {
            (None, Ok(port)) => format!("{host}:{port}:{}", election_port(port)),
            _ => format!("{host}:{port}:{}", election.unwrap_or(port)),
        }
    }

    fn parts(&self) -> (&str, &str, Option<&str>) {
        let after_brackets = self.peer_addr.rfind(']').unwrap_or(0);
        let (host, ports) = match self.peer_addr[after_brackets..].find(':') {
            Some(colon) => {
                let (host, ports) = self.peer_addr.split_at(after_brackets + colon);
                (host, &ports[1..])
            }
            None => (self.peer_addr.as_str(), "0"),
        };
        match ports.split_once(':') {
            Some((port, election)) => (host, port, Some(election)),
            None => (host, ports, None),
        }
    }
}

/// Returns the neighbor of a peer port; 65535 has one too.
pub fn election_port(peer: u16) -> u16 {
    peer.checked_add(1).unwrap_or(u16::MAX - 1)
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {} client {}", self.peer_addr, self.client_addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorum_and_election_ports_always_differ() {
        for (peer_addr, shown) in [
            ("h1:2281", "h1:2281:2282"),
            ("[::1]:2281", "[::1]:2281:2282"),
            ("h1:65535", "h1:65535:65534"),
            ("h1:2281:9", "h1:2281:9"),
            ("[fe80::1]:65535:7", "[fe80::1]:65535:7"),
        ] {
            let member = Member { peer_addr: peer_addr.to_owned(), client_addr: String::new() };
            assert_eq!(member.zookeeper_addr(), shown);
            assert_eq!(shown.rsplit_once(':').map(|(dialed, _)| dialed), Some(member.dial_addr().as_str()));
        }
    }
}
