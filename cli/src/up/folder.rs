//! Folder of `up`: the cluster's file, a data folder and a log per node, and with `--tls` the certificates of
//! nodes that accept only TLS, except for probes.
//!
//! Must never delete files that `up` did not create. Only a folder with the mark is emptied, and only names
//! used by `up` are removed.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rowlock_client::{Pem, Tls};
use rowlock_coordinator::access::tokens::{Role, Token};
use rowlock_coordinator::config::{ClusterConfig, PeerSecurity};
use rowlock_env::disk::{Dir, DirLock};

use crate::cluster::Secure;
use crate::exit::{DATA_FOLDER, Failure};
use crate::print::{count, outln};
use crate::{superuser, tls};

/// File that marks the folder as ours; contains the number of nodes.
const MARK: &str = "made-by-rowlock-up";
const LOCK: &str = "lock";
pub const CONFIG: &str = "cluster.toml";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingData {
    Fresh,
    Keep,
}

/// Returns the disk space of all files below a folder. Unreadable entries count as 0.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Folder locked by this process.
pub struct Folder {
    dir: Dir,
    _lock: DirLock,
}

impl Folder {
    /// Prints the disk space that stays in use, and the commands to continue or to clean up.
    pub fn print_kept(&self) {
        let megabytes = self.bytes().div_ceil(1_000_000);
        let root = self.dir.path().display();
        outln!("{megabytes} MB of data and logs stay in {root}: `rowlock up --keep` goes on with them,");
        outln!("and `rowlock up` without it deletes them, as `rm -r` may.");
    }

    /// Creates or takes over the folder at `root` for `config`.
    ///
    /// Adds a superuser to `config`, unless the file names one.
    pub fn open(root: &Path, config: &mut ClusterConfig, existing: ExistingData) -> Result<Folder, Failure> {
        let dir = Dir::create(root).map_err(|e| unusable(root, &e))?;
        let names = dir.list().map_err(|e| unusable(root, &e))?;
        let ours = names.is_empty() || names.iter().any(|name| name == MARK);
        if !ours {
            let problem = format!("{} holds files that are not Rowlock's", root.display());
            return Err(Failure::new(DATA_FOLDER, format!("{problem}; use another folder with --data")));
        }
        let lock = dir.lock(LOCK).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => {
                let problem = format!("another `rowlock up` uses {}", root.display());
                Failure::new(DATA_FOLDER, format!("{problem}; stop it, or use another folder with --data"))
            }
            _ => unusable(root, &e),
        })?;
        let folder = Folder { dir, _lock: lock };
        let nodes = config.nodes.len();
        match existing {
            ExistingData::Fresh => folder.empty(&names).map_err(|e| unusable(root, &e))?,
            ExistingData::Keep => folder.check_count(root, nodes)?,
        }
        superuser::provide(&folder.dir, config).map_err(|e| unusable(root, &e))?;
        if config.http.token_file == Some(root.join(TOKENS)) && !folder.dir.exists(TOKENS) {
            let (token, text) = Token::new(CLIENT.to_owned(), [Role::Operator].into(), None);
            folder.dir.write_atomic(TOKEN, text.as_bytes()).map_err(|e| unusable(root, &e))?;
            let line = format!("{token}\n");
            folder.dir.write_atomic(TOKENS, line.as_bytes()).map_err(|e| unusable(root, &e))?;
        }
        let write = |name: &str, text: String| folder.dir.write_atomic(name, text.as_bytes());
        write(MARK, format!("{nodes}\n"))
            .and_then(|()| write(CONFIG, config.to_toml()))
            .map_err(|e| unusable(root, &e))?;
        Ok(folder)
    }

    pub fn bytes(&self) -> u64 {
        bytes_below(self.dir.path())
    }

    /// Deletes the folder with its content. Undeletable files stay.
    pub fn remove(&self) {
        if let Ok(dir) = Dir::open(self.dir.path()) {
            let _ = dir.remove_all();
        }
    }

    pub fn hide_from_git(&self) {
        // Only a convenience: ignores errors.
        let _ = self.dir.write_atomic(".gitignore", b"*\n");
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join(CONFIG)
    }

    pub fn log(&self, node: u64) -> PathBuf {
        self.dir.path().join(log_name(node))
    }

    /// Returns the last line of a node's log: the reason, if the node has ended.
    pub fn last_log_line(&self, node: u64) -> Option<String> {
        let log = self.dir.read(&log_name(node)).ok()?;
        let log = String::from_utf8_lossy(&log);
        log.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }

    fn empty(&self, names: &[String]) -> std::io::Result<()> {
        for name in names {
            if name.starts_with("node-") && name.ends_with(".log") {
                self.dir.remove(name)?;
            } else if name.starts_with("node-") || name == FOLDER {
                self.dir.sub(name)?.remove_all()?;
            } else if [superuser::FILE, TOKEN, TOKENS].contains(&name.as_str()) {
                self.dir.remove(name)?;
            }
        }
        self.dir.sync()
    }

    fn check_count(&self, root: &Path, nodes: usize) -> Result<(), Failure> {
        let Ok(mark) = self.dir.read(MARK) else { return Ok(()) };
        let former = String::from_utf8_lossy(&mark).trim().parse::<usize>().unwrap_or(nodes);
        if former == nodes {
            return Ok(());
        }
        let problem = format!("{} holds a cluster of {}, not {nodes}", root.display(), count(former, "node"));
        Err(Failure::new(DATA_FOLDER, format!("{problem}; use --nodes {former}, or --fresh to delete it")))
    }
}

fn log_name(node: u64) -> String {
    format!("node-{node}.log")
}

fn unusable(root: &Path, e: &std::io::Error) -> Failure {
    let problem = format!("the data folder {} cannot be used: {e}", root.display());
    Failure::new(DATA_FOLDER, format!("{problem}; make it writable, or use another one with --data"))
}

/// Folder name inside the folder of `up`.
pub const FOLDER: &str = "tls";
/// File of `encrypt` with the hash of the operator's token.
const TOKENS: &str = "tokens";
/// File with the text of that token.
pub const TOKEN: &str = "token";
/// Name of the client with a certificate, a superuser, and of the operator's token.
const CLIENT: &str = "admin";

/// Requires certificates between nodes, TLS from clients, and tokens by HTTP.
pub fn encrypt(config: &mut ClusterConfig, root: &Path) {
    config.tls = Some(tls::node_files(&root.join(FOLDER)));
    config.peer.security = Some(PeerSecurity::Mtls);
    config.http.tls = true;
    config.http.token_file.get_or_insert_with(|| root.join(TOKENS));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ClusterConfig {
        ClusterConfig::parse(text, Path::new("/x/cluster.toml")).unwrap()
    }

    fn three() -> ClusterConfig {
        config(include_str!("../../../cluster.toml"))
    }

    #[test]
    fn a_fresh_folder_is_emptied_and_a_kept_one_is_not() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().join("up");
        drop(Folder::open(&root, &mut three(), ExistingData::Keep).unwrap());
        let data = Dir::open(&root).unwrap().sub("node-1").unwrap();
        data.write_atomic("wal", b"x").unwrap();
        drop(Folder::open(&root, &mut three(), ExistingData::Keep).unwrap());
        assert!(data.exists("wal"));
        drop(Folder::open(&root, &mut three(), ExistingData::Fresh).unwrap());
        assert!(!data.exists("wal"));
    }

    #[test]
    fn foreign_folder_is_never_touched() {
        let tmp = tempfile::tempdir().unwrap();
        Dir::open(tmp.path()).unwrap().write_atomic("thesis.tex", b"x").unwrap();
        let refused = Folder::open(tmp.path(), &mut three(), ExistingData::Fresh).err().unwrap();
        assert!(refused.message.contains("files that are not Rowlock's; use another folder"), "{refused}");
        assert!(tmp.path().join("thesis.tex").exists());
    }

    #[test]
    fn folder_in_use_by_another_process_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let _first = Folder::open(tmp.path(), &mut three(), ExistingData::Fresh).unwrap();
        let refused = Folder::open(tmp.path(), &mut three(), ExistingData::Fresh).err().unwrap();
        assert!(refused.message.starts_with("another `rowlock up` uses"), "{refused}");
    }

    #[test]
    fn kept_folder_of_another_number_of_nodes_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        drop(Folder::open(tmp.path(), &mut three(), ExistingData::Fresh).unwrap());
        let mut one = config("[[node]]\nid = 1\nclient = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\n");
        let refused = Folder::open(tmp.path(), &mut one, ExistingData::Keep).err().unwrap();
        assert!(refused.message.contains("a cluster of 3 nodes, not 1; use --nodes 3"), "{refused}");
    }
}
