//! All listeners of a node and their addresses: port 0 in the configuration means a port that the system
//! chose. The node binds all addresses before it opens its folder: a start with a taken address changes no
//! file.

use std::net::SocketAddr;

use rowlock_env::net::Listener;
use rowlock_proto::NodeId;

use super::access;
use super::errors::StartError;
use super::open::bind;
use crate::config::NodeConfig;

/// All listeners of a node, bound before its first task runs.
pub(super) struct Listeners {
    pub(super) client: Option<Listener>,
    pub(super) secure_client: Option<Listener>,
    pub(super) peer: Listener,
    pub(super) access: access::Listeners,
}

impl Listeners {
    pub(super) async fn bind(config: &NodeConfig) -> Result<Listeners, StartError> {
        let maybe = async |address: &Option<String>, purpose| match address {
            Some(address) => bind(address, purpose).await.map(Some),
            None => Ok(None),
        };
        let client = maybe(&config.client_addr, "clients").await?;
        let secure_client = maybe(&config.secure_client_addr, "clients with TLS").await?;
        if client.is_none() && secure_client.is_none() {
            return Err(StartError::NoClients);
        }
        let peer = bind(&config.peer_addr, "the other nodes").await?;
        let access = access::Listeners::bind(config).await?;
        Ok(Listeners { client, secure_client, peer, access })
    }

    fn any_client(&self) -> &Listener {
        let any = self.client.as_ref().or(self.secure_client.as_ref());
        any.expect("Invariant: a node without a listener for clients is not started")
    }
}

/// Listen addresses of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Clients' address: without TLS if the node has that listener, else with TLS.
    pub client: SocketAddr,
    /// Clients' address with TLS, if the node has that listener.
    pub secure_client: Option<SocketAddr>,
    /// Address for the other nodes.
    pub peer: SocketAddr,
    /// Listener for HTTP: health, metrics, reports.
    #[cfg(feature = "access")]
    pub http: SocketAddr,
    /// Address for locks by HTTP.
    #[cfg(feature = "access")]
    pub api: Option<SocketAddr>,
}

impl Addresses {
    pub(super) fn of(listeners: &Listeners) -> Self {
        Addresses {
            client: listeners.any_client().local_addr(),
            secure_client: listeners.secure_client.as_ref().map(Listener::local_addr),
            peer: listeners.peer.local_addr(),
            #[cfg(feature = "access")]
            http: listeners.access.http.local_addr(),
            #[cfg(feature = "access")]
            api: listeners.access.api.as_ref().map(Listener::local_addr),
        }
    }

    /// Replaces each port 0 of the configuration by the chosen port, so that the other nodes get usable
    /// addresses.
    pub(super) fn write_into(&self, config: &mut NodeConfig) {
        let NodeConfig { id, client_addr, secure_client_addr, peer_addr, file, .. } = config;
        client_addr.iter_mut().for_each(|address| fill(address, self.client));
        fill_if_any(secure_client_addr, self.secure_client);
        fill(peer_addr, self.peer);
        let entry = file.nodes.iter_mut().find(|member: &&mut _| member.id == NodeId(id.0));
        let entry = entry.expect("a node's configuration holds its own entry");
        entry.client_addr.iter_mut().for_each(|address| fill(address, self.client));
        fill_if_any(&mut entry.secure_client_addr, self.secure_client);
        fill(&mut entry.peer_addr, self.peer);
        #[cfg(feature = "access")]
        {
            fill(&mut config.http_addr, self.http);
            fill_if_any(&mut config.api_addr, self.api);
            fill(&mut entry.http_addr, self.http);
            fill_if_any(&mut entry.api_addr, self.api);
        }
    }
}

fn fill_if_any(address: &mut Option<String>, chosen: Option<SocketAddr>) {
    if let (Some(address), Some(chosen)) = (address, chosen) {
        fill(address, chosen);
    }
}

/// Replaces the port 0 by the chosen port.
fn fill(address: &mut String, chosen: SocketAddr) {
    if let Some(host) = address.strip_suffix(":0") {
        *address = format!("{host}:{}", chosen.port());
    }
}
