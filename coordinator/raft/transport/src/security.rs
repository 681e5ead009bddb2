//! Encryption of connections between nodes, and authentication of the peer.
//!
//! With TLS both nodes verify each other's certificate against the CA of nodes, and each certificate names a
//! node. The listener accepts a hello only from the node in the certificate; the dialer sends nothing before
//! verifying the node that it dialed.

use std::sync::Arc;

use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_tls::{Acceptor, Certificate, Connector, Keeper, TlsError, looks_like_tls};

use super::handshake::Identity;
use crate::limits::{PEER_CONNECT_TIMEOUT, PEER_HANDSHAKE_TIMEOUT};

/// Method by which a node authenticates its peers.
#[derive(Clone, Default)]
pub enum Security {
    /// Trusts the claimed number: every process that reaches the port is accepted.
    #[default]
    None,
    /// Verifies certificates of peers with TLS, and trusts the claimed number of peers without TLS: for a
    /// transition in which only some nodes have certificates. The material is for nodes.
    Both(Arc<Keeper>),
    /// Requires certificates. The material is for nodes.
    Mtls(Arc<Keeper>),
}

impl Security {
    /// Performs the listener's TLS handshake. Returns the node in the certificate. The caller sets a
    /// deadline.
    ///
    /// # Errors
    /// The reason for closing the connection.
    pub(super) async fn accept(
        &self,
        stream: Stream,
        us: &Identity,
    ) -> Result<(Stream, Option<NodeId>), String> {
        let (keeper, takes_plain) = match self {
            Security::None => return Ok((stream, None)),
            Security::Both(keeper) => (keeper, true),
            Security::Mtls(keeper) => (keeper, false),
        };
        let first = stream.first_byte().await.map_err(|error| error.to_string())?;
        match first {
            None => return Err("closed by the other side".to_owned()),
            Some(first) if looks_like_tls(first) => {}
            Some(_) if takes_plain => return Ok((stream, None)),
            Some(_) => return Err("it does not speak TLS".to_owned()),
        }
        let secured = of_nodes(keeper).0.accept(stream).await.map_err(|error| error.to_string())?;
        let certificate = secured.certificate.ok_or("it has no certificate")?;
        Ok((secured.stream, Some(named(&certificate, us)?)))
    }

    /// Connects to the node `to` within the limits' time.
    ///
    /// # Errors
    /// The reason of the failure. No application data was sent.
    /// # Cancel safety
    /// Dropping the future ends the attempt.
    pub(super) async fn connect(&self, address: &str, us: &Identity, to: NodeId) -> Result<Stream, String> {
        let connect = || async {
            let stream = Stream::connect(address, PEER_CONNECT_TIMEOUT).await;
            stream.map_err(|error| error.to_string())
        };
        let (keeper, takes_plain) = match self {
            Security::None => return connect().await,
            Security::Both(keeper) => (keeper, true),
            Security::Mtls(keeper) => (keeper, false),
        };
        let connector = of_nodes(keeper).1;
        let shaken = time::timeout(PEER_HANDSHAKE_TIMEOUT, connector.connect_to_node(connect().await?)).await;
        let (stream, certificate) = match shaken {
            Ok(Ok(secured)) => secured,
            Ok(Err(TlsError::HungUp)) if takes_plain => {
                tracing::debug!(node = %to, address, "the node does not speak TLS yet");
                return connect().await;
            }
            Ok(Err(error)) => return Err(error.to_string()),
            Err(time::Elapsed) => return Err(format!("no TLS handshake within {PEER_HANDSHAKE_TIMEOUT:?}")),
        };
        let there = named(&certificate, us)?;
        if there != to {
            return Err(format!("the certificate there is that of node {there}"));
        }
        Ok(stream)
    }
}

fn of_nodes(keeper: &Keeper) -> (Acceptor, Connector) {
    keeper.material().peers.clone().expect("Invariant: the material of a node that asks for TLS is for nodes")
}

/// Returns the node of this cluster that a certificate names.
fn named(certificate: &Certificate, us: &Identity) -> Result<NodeId, String> {
    let node = certificate.node_of(&us.cluster).map(NodeId);
    node.ok_or_else(|| format!("the certificate of {} names no node of this cluster", certificate.subject))
}
