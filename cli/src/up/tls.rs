//! The certificates of a cluster that runs with `up --tls`: nodes take nothing without, but probes.

use std::path::{Path, PathBuf};

use rowlock_client::{Pem, Tls};
use rowlock_coordinator::config::{ClusterConfig, PeerSecurity};

use crate::cluster::Secure;
use crate::exit::Failure;
use crate::tls;

/// In the folder of `up`.
pub const FOLDER: &str = "tls";
/// The client for whom there is a certificate. It passes every ACL.
const CLIENT: &str = "admin";

/// Nodes know each other by certificates, and clients come by TLS only.
pub fn encrypt(config: &mut ClusterConfig, root: &Path) {
    config.tls = Some(tls::node_files(&root.join(FOLDER)));
    config.peer.security = Some(PeerSecurity::Mtls);
    config.http.tls = true;
    config.client.x509_superusers.push(format!("CN={CLIENT}"));
    for node in &mut config.nodes {
        if node.secure_client_addr.is_none() {
            node.secure_client_addr = node.client_addr.take();
            node.secure_client_listen = node.client_listen.take();
        }
        (node.client_addr, node.client_listen) = (None, None);
    }
}

/// Makes the certificates, unless a former `up` has left them.
pub fn make(config: &ClusterConfig, root: &Path) -> Result<Way, Failure> {
    let folder = root.join(FOLDER);
    let way = Way(tls::client_files(&folder, CLIENT));
    if !way.0.iter().all(|file| file.exists()) {
        tls::make(&folder, config, CLIENT)?;
    }
    Ok(way)
}

/// The files by which a client connects: the authority, its certificate, its key.
pub struct Way([PathBuf; 3]);

impl Way {
    /// For a client in this process.
    pub fn tls(&self) -> Tls {
        let [ca, cert, key] = self.0.clone().map(Pem::File);
        Tls::new(ca).identity(cert, key)
    }

    /// For HTTP of this process.
    pub fn secure(&self) -> Result<Secure, Failure> {
        let [ca, cert, key] = self.0.clone().map(rowlock_tls::Pem::File);
        Secure::new(rowlock_tls::ClientTls { ca, identity: Some((cert, key)) }, None)
    }

    pub fn curl(&self) -> String {
        let [ca, cert, key] = self.0.each_ref().map(|file| file.display());
        format!("curl --cacert {ca} --cert {cert} --key {key}")
    }

    /// For commands in a shell.
    pub fn exports(&self) -> String {
        let [ca, cert, key] = self.0.each_ref().map(|file| file.display());
        format!("export ROWLOCK_TLS_CA={ca} ROWLOCK_TLS_CERT={cert} ROWLOCK_TLS_KEY={key}")
    }
}
