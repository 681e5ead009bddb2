//! Where a node really listens: port 0 in its configuration means a port that the system chose.

use std::net::SocketAddr;

use rowlock_proto::NodeId;

use super::Listeners;
use crate::config::NodeConfig;

/// Where a node listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For clients.
    pub client: SocketAddr,
    /// For the other nodes.
    pub peer: SocketAddr,
    /// For HTTP.
    pub http: SocketAddr,
}

impl Addresses {
    pub(super) fn of(listeners: &Listeners) -> Self {
        Addresses {
            client: listeners.client.local_addr(),
            peer: listeners.peer.local_addr(),
            http: listeners.http.local_addr(),
        }
    }

    /// Puts the chosen ports where the configuration says 0, so that the others are told ports at which this
    /// node can be found.
    pub(super) fn write_into(&self, config: &mut NodeConfig) {
        let NodeConfig { id, client_addr, peer_addr, http_addr, members, .. } = config;
        fill(client_addr, self.client);
        fill(peer_addr, self.peer);
        fill(http_addr, self.http);
        let entry = members.iter_mut().find(|member: &&mut _| member.id == NodeId(id.0));
        let entry = entry.expect("a node's configuration holds its own entry");
        fill(&mut entry.client_addr, self.client);
        fill(&mut entry.peer_addr, self.peer);
        fill(&mut entry.http_addr, self.http);
    }
}

/// Replaces the port 0 by the chosen one.
fn fill(address: &mut String, chosen: SocketAddr) {
    if let Some(host) = address.strip_suffix(":0") {
        *address = format!("{host}:{}", chosen.port());
    }
}
