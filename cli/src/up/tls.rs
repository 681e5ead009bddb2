//! Certificates of a cluster started by `up --tls`, whose nodes accept only TLS, except for probes.

use std::path::{Path, PathBuf};

use rowlock_client::{Pem, Tls};
use rowlock_coordinator::config::{ClusterConfig, PeerSecurity};

use crate::cluster::Secure;
use crate::exit::Failure;
use crate::tls;

/// Folder name inside the folder of `up`.
pub const FOLDER: &str = "tls";
/// Name of the client with a certificate, a superuser.
const CLIENT: &str = "admin";

/// Requires certificates between nodes, and TLS from clients.
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

/// Creates the certificates, unless an earlier `up` has left them.
pub fn make(config: &ClusterConfig, root: &Path) -> Result<CertPaths, Failure> {
    let folder = root.join(FOLDER);
    let cert = CertPaths(tls::client_files(&folder, CLIENT));
    if !cert.0.iter().all(|file| file.exists()) {
        tls::make(&folder, config, CLIENT)?;
    }
    Ok(cert)
}

/// Paths of a client's files: CA certificate, certificate, private key.
pub struct CertPaths([PathBuf; 3]);

impl CertPaths {
    /// Returns the TLS options of a client in this process.
    pub fn tls(&self) -> Tls {
        let [ca, cert, key] = self.0.clone().map(Pem::File);
        Tls::new(ca).identity(cert, key)
    }

    /// Loads the TLS files for HTTP in this process.
    pub fn secure(&self) -> Result<Secure, Failure> {
        let [ca, cert, key] = self.0.clone().map(rowlock_tls::Pem::File);
        Secure::new(rowlock_tls::ClientTls { ca, identity: Some((cert, key)) }, None)
    }

    pub fn curl(&self) -> String {
        let [ca, cert, key] = self.0.each_ref().map(|file| file.display());
        format!("curl --cacert {ca} --cert {cert} --key {key}")
    }

    /// Returns the variables for commands in a shell.
    pub fn exports(&self) -> String {
        let [ca, cert, key] = self.0.each_ref().map(|file| file.display());
        format!("export ROWLOCK_TLS_CA={ca} ROWLOCK_TLS_CERT={cert} ROWLOCK_TLS_KEY={key}")
    }
}
