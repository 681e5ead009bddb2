//! All listeners of a node. The node binds all addresses before it opens its folder: a start with a taken
//! address changes no file.

use rowlock_env::net::Listener;

use super::access;
use super::bind::bind;
use super::errors::StartError;
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

    pub(super) fn any_client(&self) -> &Listener {
        let any = self.client.as_ref().or(self.secure_client.as_ref());
        any.expect("Invariant: a node without a listener for clients is not started")
    }
}
