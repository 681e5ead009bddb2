//! Certificates of a cluster's nodes, and an intruder at the nodes' port with some or none.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use rowlock_env::net::Stream;
use rowlock_proto::{Incarnation, NodeId};
use rowlock_state::version::Versions;
use rowlock_tls::issue::{Authority, Issued, Leaf};
use rowlock_tls::{Certificate, ClientAuth, Files, Material, node_uri};
use rowlock_transport::frame::{self, FrameReader, RequestId};
use rowlock_transport::handshake::{self, Hello};
use rowlock_transport::{Identity, Lane};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::cluster::Cluster;
use super::{eventually, secs};

/// What `cluster.toml` says of the files.
pub const TLS: &str = "[tls]\ncert = \"tls/node-{id}.pem\"\nkey = \"tls/node-{id}.key\"\n\
                       peer_ca = \"tls/peers-ca.pem\"\ncrl = \"tls/crl.pem\"\n";
/// The name of the clusters of these tests.
const CLUSTER: &str = "test";
/// What counts is not about to expire.
pub const MONTH: i64 = 30 * 86_400;

pub fn authority(name: &str) -> Authority {
    Authority::new(name, MONTH).unwrap()
}

/// In one step: a node may be reading it.
pub fn write(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(beside, path).unwrap();
}

pub fn give_certificates(folder: &Path, authority: &Authority, nodes: u64) -> Vec<Issued> {
    (1..=nodes)
        .map(|node| {
            let issued = of_node(authority, node, MONTH);
            let file = |end: &str| folder.join("tls").join(format!("node-{node}.{end}"));
            write(&file("key"), &issued.key_pem);
            write(&file("pem"), &issued.cert_pem);
            issued
        })
        .collect()
}

/// Believes these authorities, as PEM, of whom `authority` has revoked these.
pub fn believe(folder: &Path, pem: &str, authority: &Authority, revoked: &[&Certificate]) {
    fs::create_dir_all(folder.join("tls")).unwrap();
    write(&folder.join("tls/peers-ca.pem"), pem);
    write(&folder.join("tls/crl.pem"), &authority.revoke(revoked).unwrap());
}

pub fn of_node(authority: &Authority, node: u64, valid_s: i64) -> Issued {
    let uri = node_uri(CLUSTER, node);
    authority.issue(&Leaf { name: "node", hosts: &["127.0.0.1"], uri: Some(&uri), valid_s }).unwrap()
}

/// An intruder at the nodes' port.
pub struct Visitor {
    material: Option<Material>,
    node: u64,
}

impl Visitor {
    /// One who speaks no TLS and says that it is this node.
    pub fn plain(node: u64) -> Visitor {
        Visitor { material: None, node }
    }

    /// One with this certificate who says that it is this node.
    pub fn with(issued: &Issued, trusted: &Authority, node: u64) -> Visitor {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| -> PathBuf {
            let path = folder.path().join(name);
            write(&path, text);
            path
        };
        let files = Files {
            cert: file("cert.pem", &issued.cert_pem),
            key: file("key.pem", &issued.key_pem),
            peer_ca: Some(file("ca.pem", trusted.cert_pem())),
            client_ca: None,
            crl: None,
        };
        Visitor { material: Some(Material::read(&files, ClientAuth::None).unwrap()), node }
    }

    /// Says hello to the node `to`, and is let in or not.
    pub async fn visit(&self, address: &str, to: u64) -> Result<(), String> {
        let visit = self.try_to_get_in(address, to);
        tokio::time::timeout(secs(20), visit).await.expect("an answer in time")
    }

    /// The number of the certificate that the node shows.
    pub async fn serial(&self, address: &str) -> Result<String, String> {
        let connect = async { Ok(self.connect(address).await?.1.expect("has certificates").serial) };
        tokio::time::timeout(secs(20), connect).await.expect("an answer in time")
    }

    async fn connect(&self, address: &str) -> Result<(Stream, Option<Certificate>), String> {
        let plain = Stream::connect(address, secs(10)).await.map_err(|error| error.to_string())?;
        let Some(material) = &self.material else { return Ok((plain, None)) };
        let connector = &material.peers.as_ref().unwrap().1;
        let (stream, theirs) = connector.connect_to_node(plain).await.map_err(|error| error.to_string())?;
        Ok((stream, Some(theirs)))
    }

    async fn try_to_get_in(&self, address: &str, to: u64) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let (mut stream, _) = self.connect(address).await?;
        stream.write_all(&hello(self.node, to)).await.map_err(text)?;
        let mut frames = FrameReader::new(1 << 16);
        let verdict = loop {
            if let Some(frame) = frames.next_frame().map_err(|error| error.to_string())? {
                break frame;
            }
            if stream.read_buf(frames.room()).await.map_err(text)? == 0 {
                return Err("hung up".to_owned());
            }
        };
        handshake::check_verdict(&verdict.body).map(drop).map_err(|refusal| refusal.to_string())
    }
}

/// The frame by which a node says who it is. One of these tests has no data folder: a new one each time would
/// be refused.
pub fn hello(from: u64, to: u64) -> BytesMut {
    let from = Identity { cluster: CLUSTER.to_owned(), node: NodeId(from) };
    let hello = Hello {
        from,
        to: NodeId(to),
        lane: Lane::Control,
        incarnation: Incarnation(1),
        cluster: None,
        versions: Versions::of_this_release(),
    };
    let mut out = BytesMut::new();
    frame::push(&mut out, RequestId::NONE, &handshake::encode_hello(&hello));
    out
}

/// Waits until the node shows the certificate of this number at its port for nodes.
pub async fn shows(cluster: &Cluster, visitor: &Visitor, node: u64, serial: &str) {
    let shown = || async { (visitor.serial(cluster.peer(node)).await.ok()? == serial).then_some(()) };
    // Files are looked at every five seconds.
    eventually("the new certificate is shown", secs(10), shown).await;
}
