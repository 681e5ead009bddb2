//! Material for handshakes, made from the `[tls]` files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rowlock_env::reload::{self, Reloadable};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::certificate::Certificate;
use crate::error::TlsError;
use crate::files::{self, Contents, Files};
use crate::handshake::{Acceptor, Connector};
use crate::verify::{self, NodeVerifier, Registry, Watched};

/// TLS versions for clients. Old clients of ZooKeeper (Netty in Java 8) need TLS 1.2.
pub(crate) const CLIENT_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
/// TLS versions between nodes: all nodes support TLS 1.3.
const PEER_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13];

const HTTP_PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"http/1.0"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    None,
    /// Requests a certificate, but accepts clients without a certificate.
    Want,
    /// Refuses clients without a certificate.
    #[default]
    Need,
}

pub struct Material {
    pub certificate: Certificate,
    /// TlsState sides of connections between nodes. `None` without `peer_ca`.
    pub peers: Option<(Acceptor, Connector)>,
    pub clients: Acceptor,
    /// Acceptor for HTTP. With `client_ca`, clients may show a certificate.
    pub http: Acceptor,
    registries: Registries,
    verifiers: [Option<Arc<dyn ClientCertVerifier>>; 2],
}

/// Registries of connections with nodes and with clients.
#[derive(Clone, Default)]
struct Registries {
    peers: Registry,
    clients: Registry,
}

/// Connections of all materials of a keeper.
#[derive(Default)]
struct AllWatched {
    peers: Arc<Watched>,
    clients: Arc<Watched>,
}

impl AllWatched {
    fn registries(&self) -> Registries {
        Registries { peers: Registry::of(self.peers.clone()), clients: Registry::of(self.clients.clone()) }
    }

    /// Closes connections with expired certificates, and with `new` material also connections with
    /// certificates refused by this material. Returns the number of closed connections.
    fn close_outdated(&self, new: Option<&Material>) -> usize {
        let refused = new.map_or(0, |new| {
            let [peers, clients] = &new.verifiers;
            self.peers.close_refused(peers.as_deref()) + self.clients.close_refused(clients.as_deref())
        });
        refused + self.peers.close_expired() + self.clients.close_expired()
    }
}

impl Material {
    /// Reads the files and checks their consistency. Blocks.
    ///
    /// # Errors
    /// The file, the problem, and the remedy.
    pub fn read(files: &Files, client_auth: ClientAuth) -> Result<Material, TlsError> {
        Self::of(files, &files.read()?, client_auth, Registries::default())
    }

    fn of(
        files: &Files,
        contents: &Contents,
        client_auth: ClientAuth,
        registries: Registries,
    ) -> Result<Material, TlsError> {
        let own = NodeIdentity {
            chain: files::certificates(&files.cert, &contents.cert)?,
            key: files::key(&files.key, &contents.key)?,
            of: files,
        };
        let crls = match (&files.crl, &contents.crl) {
            (Some(path), Some(pem)) => files::crls(path, pem)?,
            _ => Vec::new(),
        };
        let roots = |path: &Option<PathBuf>, pem: &Option<Vec<u8>>| match (path, pem) {
            (Some(path), Some(pem)) => roots(path, pem).map(Some),
            _ => Ok(None),
        };
        let (peer_roots, client_roots) =
            (roots(&files.peer_ca, &contents.peer_ca)?, roots(&files.client_ca, &contents.client_ca)?);
        let verifier = |roots: &Option<RootCertStore>| {
            roots.as_ref().map(|roots| verify::of_clients(roots.clone(), crls.clone(), false)).transpose()
        };
        let verifiers = [verifier(&peer_roots)?, verifier(&client_roots)?];
        let peers =
            verifiers[0].clone().map(|verifier| own.peers(verifier, registries.peers.clone())).transpose()?;
        let http = own.http(client_roots.clone(), crls.clone())?;
        let clients = own.with_tickets(client_roots, crls, client_auth)?;
        let clients = Acceptor::of_clients(clients, registries.clients.clone());
        let leaf = own.chain.first().expect("a file without certificates was refused");
        let certificate =
            Certificate::of(leaf).map_err(|error| TlsError::file(&files.cert, error.to_string()))?;
        Ok(Material { certificate, peers, clients, http, registries, verifiers })
    }

    /// Fails the unfinished handshakes, because newer material has replaced this material.
    fn is_replaced(&self) {
        self.registries.peers.close();
        self.registries.clients.close();
    }
}

struct NodeIdentity<'a> {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    of: &'a Files,
}

impl NodeIdentity<'_> {
    fn peers(
        &self,
        verifier: Arc<dyn ClientCertVerifier>,
        registry: Registry,
    ) -> Result<(Acceptor, Connector), TlsError> {
        let mut server = self.server(PEER_VERSIONS, verifier.clone())?;
        // Nodes connect rarely, and each connection verifies the certificate.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(verify::provider())
            .with_protocol_versions(PEER_VERSIONS)
            .map_err(|error| TlsError::Settings(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(NodeVerifier(verifier)))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| mismatch(&self.of.key, &self.of.cert, &error))?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok((Acceptor::of_peers(server, registry.clone()), Connector::to_peers(client, registry)))
    }

    fn http(
        &self,
        roots: Option<RootCertStore>,
        crls: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Acceptor, TlsError> {
        let auth = if roots.is_some() { ClientAuth::Want } else { ClientAuth::None };
        let mut server = self.with_tickets(roots, crls, auth)?;
        server.alpn_protocols = HTTP_PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(Acceptor::of_http(server))
    }

    fn with_tickets(
        &self,
        roots: Option<RootCertStore>,
        crls: Vec<CertificateRevocationListDer<'static>>,
        auth: ClientAuth,
    ) -> Result<ServerConfig, TlsError> {
        let verifier = match (auth, roots) {
            (ClientAuth::None, _) => WebPkiClientVerifier::no_client_auth(),
            (_, None) => {
                let what = "certificates of clients can only be verified with client_ca in [tls]";
                return Err(TlsError::Settings(what.to_owned()));
            }
            (auth, Some(roots)) => verify::of_clients(roots, crls, auth == ClientAuth::Want)?,
        };
        let mut server = self.server(CLIENT_VERSIONS, verifier)?;
        // Clients reconnecting all at once resume by tickets, at a fraction of the cost. New material has new
        // ticket keys: a client without trust cannot resume.
        server.ticketer = rustls::crypto::ring::Ticketer::new()
            .map_err(|error| TlsError::Settings(format!("no keys for tickets: {error}")))?;
        Ok(server)
    }

    fn server(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Result<ServerConfig, TlsError> {
        ServerConfig::builder_with_provider(verify::provider())
            .with_protocol_versions(versions)
            .map_err(|error| TlsError::Settings(error.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| mismatch(&self.of.key, &self.of.cert, &error))
    }
}

pub(crate) fn mismatch(key: &Path, cert: &Path, error: &rustls::Error) -> TlsError {
    TlsError::file(key, format!("does not go with {}: {error}", cert.display()))
}

pub(crate) fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for one in files::certificates(path, pem)? {
        roots.add(one).map_err(|error| TlsError::file(path, format!("is no authority: {error}")))?;
    }
    Ok(roots)
}

pub type Reloaded = reload::Reloaded<TlsError>;

/// Keeps a node's material up to date: reloads changed files, all together; an unusable file changes nothing.
pub struct Keeper {
    files: Reloadable<Contents, Material, TlsError>,
    watched: Arc<AllWatched>,
}

impl Keeper {
    /// Reads the files for the first time. `check` refuses material unfit for this node. Blocks.
    ///
    /// # Errors
    /// The file, the problem, and the remedy.
    pub fn open(
        files: Files,
        client_auth: ClientAuth,
        check: impl Fn(&Material) -> Result<(), TlsError> + Send + Sync + 'static,
    ) -> Result<Keeper, TlsError> {
        let watched = Arc::new(AllWatched::default());
        let (paths, registries) = (files.clone(), watched.clone());
        let build = move |contents: &Contents| {
            let material = Material::of(&paths, contents, client_auth, registries.registries())?;
            check(&material)?;
            Ok(material)
        };
        Ok(Keeper { files: Reloadable::open(move || files.read(), build)?, watched })
    }

    pub fn material(&self) -> Arc<Material> {
        self.files.current()
    }

    /// Makes [`Keeper::run`] reload the files soon.
    pub fn reload_soon(&self) {
        self.files.reload_soon();
    }

    /// Reloads the files, and uses the new files if all are valid. Returns a failure once per change. Blocks.
    pub fn reload(&self) -> Reloaded {
        let old = self.material();
        let reloaded = self.files.reload();
        if reloaded == Reloaded::New {
            old.is_replaced();
        }
        reloaded
    }

    /// Closes the connections with expired certificates, and after new files also the connections with
    /// untrusted certificates. Call after [`Keeper::reload`]. Returns the number of closed connections.
    /// Blocks.
    pub fn close_outdated(&self, reloaded: &Reloaded) -> usize {
        let material = self.material();
        self.watched.close_outdated((*reloaded == Reloaded::New).then_some(&material))
    }

    /// Reloads the files periodically without end, closes connections with outdated certificates, and passes
    /// each result with the number of closed connections to `report`.
    pub async fn run(self: Arc<Self>, report: impl Fn(&Material, &Reloaded, usize)) {
        let keeper = self.clone();
        let reload = move || {
            let reloaded = keeper.reload();
            let closed = keeper.close_outdated(&reloaded);
            (reloaded, closed)
        };
        self.files
            .run("tls-files", reload, |(reloaded, closed)| report(&self.material(), &reloaded, closed))
            .await;
    }
}
