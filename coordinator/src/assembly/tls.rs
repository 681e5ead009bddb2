//! Certificates of a node: checks at the start, and reports on changes at run time.

use std::net::SocketAddr;
use std::sync::Arc;

use rowlock_consensus::peer::Security;
use rowlock_env::{time, worker};
use rowlock_metrics::{Metrics, TlsListener};
use rowlock_tls::{Certificate, ClientAuth, Keeper, Material, Reloaded, TlsError, node_uri};

use super::errors::StartError;
use crate::config::{self, NodeConfig, PeerSecurity};

/// Keeper of the node's certificates, if it has any.
pub(super) type Tls = Option<Arc<Keeper>>;

/// Remaining time below which the node warns of its certificate's end: two weeks to replace it.
const EXPIRES_SOON_MS: i64 = 14 * 86_400_000;

/// Refuses a nodes' port beyond loopback without a configured authentication of nodes.
pub(super) fn refuse_open_port(config: &NodeConfig, address: SocketAddr) -> Result<(), StartError> {
    if config.peer.security.is_some() || address.ip().is_loopback() {
        return Ok(());
    }
    Err(StartError::Insecure { address })
}

/// Reads the certificates, if configured.
pub(super) async fn open(config: &NodeConfig) -> Result<Tls, TlsError> {
    let (cluster, node) = (config.name.clone(), config.id.0);
    let (is_for_nodes, is_for_clients) =
        (config.peer.needs_certificates(), config.secure_client_addr.is_some());
    let Some(files) = config.tls.clone() else {
        let needs = [
            (is_for_nodes, "the nodes' port"),
            (is_for_clients, "secure_client"),
            (config.http.tls, "tls = true in [http]"),
        ];
        let needing = needs.into_iter().find_map(|(needed, what)| needed.then_some(what));
        return match needing {
            Some(what) => Err(TlsError::Settings(format!("{what} needs certificates"))),
            None => Ok(None),
        };
    };
    let auth = match config.client.client_auth {
        config::ClientAuth::Want if is_for_clients => ClientAuth::Want,
        config::ClientAuth::Need if is_for_clients => ClientAuth::Need,
        _ => ClientAuth::None,
    };
    let cert = files.cert.clone();
    let check = move |material: &Material| {
        if !is_for_nodes {
            return Ok(());
        }
        if material.peers.is_none() {
            return Err(TlsError::Settings("the nodes' port needs peer_ca".to_owned()));
        }
        let names = material.certificate.node_of(&cluster);
        if names == Some(node) {
            return Ok(());
        }
        let whose = names.map_or("no node of this cluster".to_owned(), |other| format!("node {other}"));
        let wanted = node_uri(&cluster, node);
        let what = format!("is the certificate of {whose}; node {node} needs one for the URI {wanted}");
        Err(TlsError::File { file: cert.clone(), what })
    };
    let opened = worker::run_blocking("tls-files", move || Keeper::open(files, auth, check)).await?;
    describe(&opened.material().certificate);
    Ok(Some(Arc::new(opened)))
}

/// Returns the authentication between this node and the others.
pub(super) fn security(config: &NodeConfig, tls: &Tls) -> Security {
    match (config.peer.security, tls) {
        (Some(PeerSecurity::Both), Some(keeper)) => Security::Both(keeper.clone()),
        (Some(PeerSecurity::Mtls), Some(keeper)) => Security::Mtls(keeper.clone()),
        _ => Security::None,
    }
}

fn describe(certificate: &Certificate) {
    let Certificate { subject, serial, .. } = certificate;
    let left_ms = certificate.expires_ms.saturating_sub(time::wall_ms());
    let days = left_ms / 86_400_000;
    if left_ms <= 0 {
        tracing::error!(%subject, %serial, "the certificate of this node has expired: replace it");
    } else if left_ms < EXPIRES_SOON_MS {
        tracing::warn!(%subject, %serial, days, "the certificate of this node expires soon: replace it");
    } else {
        tracing::info!(%subject, %serial, days, "the certificate of this node");
    }
}

/// Reports certificate changes and expiry in the log and the metrics.
pub(super) struct Expiry {
    listeners: Vec<TlsListener>,
    metrics: Arc<Metrics>,
}

impl Expiry {
    pub(super) fn new(config: &NodeConfig, metrics: Arc<Metrics>) -> Self {
        let peer = config.peer.needs_certificates().then_some(TlsListener::Peer);
        let client = config.secure_client_addr.as_ref().map(|_| TlsListener::Client);
        let http = config.http.tls.then_some(TlsListener::Http);
        Expiry { listeners: peer.into_iter().chain(client).chain(http).collect(), metrics }
    }

    /// Reports the result of a check of the files.
    pub(super) fn report(&self, material: &Material, reloaded: &Reloaded, closed: usize) {
        match reloaded {
            Reloaded::Same => {}
            Reloaded::New => {
                tracing::info!("loaded new files of [tls]");
                describe(&material.certificate);
            }
            Reloaded::Failed(error) => {
                self.metrics.tls_reload_failures_total.inc();
                tracing::error!(%error, "cannot load changed files of [tls]; still using the previous ones: correct them");
            }
        }
        if closed > 0 {
            self.metrics.tls_connections_closed_total.add(closed as u64);
            tracing::info!(closed, "closed connections with certificates that are no longer valid");
        }
        self.show(material);
    }

    pub(super) fn show(&self, material: &Material) {
        let left_ms = material.certificate.expires_ms.saturating_sub(time::wall_ms());
        for listener in &self.listeners {
            self.metrics.tls_cert_expiry_seconds.set(*listener, left_ms.div_euclid(1_000));
        }
    }
}
