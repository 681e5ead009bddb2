//! Whether connections between nodes are encrypted, and which node is at the other end.
//!
//! With TLS both sides verify each other's certificate against the authorities of nodes, and each names its
//! node. The listener takes a hello only from the node that the certificate names; the dialer says nothing
//! before it knows that it has reached the node that it dialed.

use std::sync::Arc;

use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_tls::{Acceptor, Certificate, Connector, Keeper, TlsError, looks_like_tls};
use rowlock_types::limits::{PEER_CONNECT_TIMEOUT, PEER_HANDSHAKE_TIMEOUT};

use super::handshake::Identity;

/// How a node knows the others.
#[derive(Clone, Default)]
pub enum Security {
    /// By their claim: any process that reaches the port is believed.
    #[default]
    None,
    /// By their certificates where they speak TLS, and by their word where they do not: for the time in which
    /// some nodes have certificates and others do not yet. The material is for nodes.
    Both(Arc<Keeper>),
    /// By their certificates. The material is for nodes.
    Mtls(Arc<Keeper>),
}

impl Security {
    /// The listener's side; gives the node that the certificate names. The caller sets a deadline.
    ///
    /// # Errors
    /// Why the connection is closed.
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

    /// The dialer's side: a connection to the node `to`, within the limits' time.
    ///
    /// # Errors
    /// Why there is none. Nothing was said on it.
    /// # Cancel safety
    /// The attempt is given up.
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

/// The node of our cluster that a certificate names.
fn named(certificate: &Certificate, us: &Identity) -> Result<NodeId, String> {
    let node = certificate.node_of(&us.cluster).map(NodeId);
    node.ok_or_else(|| format!("the certificate of {} names no node of this cluster", certificate.subject))
}
