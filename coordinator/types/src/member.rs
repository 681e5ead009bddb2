//! Where a member of the cluster is found. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A member's entry in the membership: where other nodes find it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` for the other nodes. A member that came by a reconfiguration in ZooKeeper's terms may have
    /// a second port behind it (`host:port:election`), which we never dial and only repeat in
    /// /zookeeper/config.
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

    /// `host:quorum:election`, as ZooKeeper writes it: our one port stands for both of its ports.
    pub fn zookeeper_addr(&self) -> String {
        let (host, port, election) = self.parts();
        format!("{host}:{port}:{}", election.unwrap_or(port))
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

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {} client {}", self.peer_addr, self.client_addr)
    }
}
