//! Folder of certificates and keys, with the names of its files.
//!
//! Invariant: only `rowlock tls renew` overwrites existing files. Keys are created with mode 0600.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_env::time;
use rowlock_tls::inspect;
use rowlock_tls::issue::{Authority, Issued, Leaf};

use super::DAY_S;
use crate::exit::{CONFIG, DATA_FOLDER, Failure, IO};

/// File stem of the CA for nodes.
pub const PEERS: &str = "peers-ca";
/// File stem of the CA for clients.
pub const CLIENTS: &str = "clients-ca";
const CERT: &str = ".pem";
const KEY: &str = ".key";

pub fn node(id: u64) -> String {
    format!("node-{id}")
}

pub fn client(name: &str) -> String {
    format!("client-{name}")
}

pub struct Folder {
    dir: Dir,
}

/// CA of the folder with its expiry.
pub struct Signer {
    authority: Authority,
    expires_ms: i64,
}

impl Folder {
    /// Opens the folder at `path`, and creates a missing folder.
    pub fn create(path: &Path) -> Result<Folder, Failure> {
        let dir = Dir::create(path);
        Ok(Folder { dir: dir.map_err(|e| unusable(path, &e, "use another folder with --dir"))? })
    }

    /// Opens the folder at `path`, which must exist.
    pub fn open(path: &Path) -> Result<Folder, Failure> {
        let dir = Dir::open(path);
        let remedy = "make it with `rowlock tls init`, or name another one with --dir";
        Ok(Folder { dir: dir.map_err(|e| unusable(path, &e, remedy))? })
    }

    /// Returns the path of the certificate `stem`.
    pub fn cert(&self, stem: &str) -> PathBuf {
        self.dir.path().join(format!("{stem}{CERT}"))
    }

    pub fn key(&self, stem: &str) -> PathBuf {
        self.dir.path().join(format!("{stem}{KEY}"))
    }

    pub fn stems(&self) -> Result<Vec<String>, Failure> {
        let names = self.dir.list().map_err(|e| unusable(self.dir.path(), &e, "make it readable"))?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(CERT)).map(str::to_owned).collect())
    }

    /// Fails if a certificate or key of these stems exists.
    pub fn refuse_taken<'a>(&self, stems: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
        let mut files = stems.into_iter().flat_map(|stem| [CERT, KEY].map(|end| format!("{stem}{end}")));
        match files.find(|file| self.dir.exists(file)) {
            None => Ok(()),
            Some(file) => Err(already_exists(&self.dir.path().join(file))),
        }
    }

    /// Writes a certificate and its key. Fails if one of the files exists.
    pub fn keep(&self, stem: &str, cert_pem: &str, key_pem: &str) -> Result<(), Failure> {
        for (end, text) in [(KEY, key_pem), (CERT, cert_pem)] {
            let name = format!("{stem}{end}");
            let written = self.dir.create_new(&name).and_then(|file| {
                file.write_all_at(text.as_bytes(), 0)?;
                file.sync_all()
            });
            written.and_then(|()| self.dir.sync()).map_err(|e| self.write_failed(&name, &e))?;
        }
        Ok(())
    }

    /// Replaces a certificate and its key. A node that reads between both writes finds a key that does not
    /// match, keeps the old pair, and reads again later.
    pub fn replace(&self, stem: &str, issued: &Issued) -> Result<(), Failure> {
        for (end, text) in [(KEY, &issued.key_pem), (CERT, &issued.cert_pem)] {
            let name = format!("{stem}{end}");
            self.dir.write_atomic(&name, text.as_bytes()).map_err(|e| self.write_failed(&name, &e))?;
        }
        Ok(())
    }

    pub fn signer(&self, stem: &str) -> Result<Signer, Failure> {
        let wrong = |e| Failure::new(CONFIG, e);
        let (cert, key) = (self.cert(stem), self.key(stem));
        for (path, end) in [(&cert, CERT), (&key, KEY)] {
            if !self.dir.exists(&format!("{stem}{end}")) {
                let problem = format!("{} is missing: it is needed for signing", path.display());
                return Err(Failure::new(
                    CONFIG,
                    format!("{problem}; restore it, or name its folder with --dir"),
                ));
            }
        }
        inspect::key(&key, &cert).map_err(wrong)?;
        let read = inspect::certificates(&cert).map_err(wrong)?;
        let authority = Authority::load(&self.text(stem, CERT)?, &self.text(stem, KEY)?)
            .map_err(|e| Failure::new(CONFIG, format!("{}: {e}", cert.display())))?;
        Ok(Signer { authority, expires_ms: read.first().map_or(0, |certificate| certificate.expires_ms) })
    }

    fn text(&self, stem: &str, end: &str) -> Result<String, Failure> {
        let name = format!("{stem}{end}");
        let path = self.dir.path().join(&name);
        let bytes = self.dir.read(&name).map_err(|e| unusable(&path, &e, "make it readable"))?;
        String::from_utf8(bytes).map_err(|_| Failure::new(CONFIG, format!("{} is not text", path.display())))
    }

    fn write_failed(&self, name: &str, e: &std::io::Error) -> Failure {
        let path = self.dir.path().join(name);
        if e.kind() == ErrorKind::AlreadyExists {
            return already_exists(&path);
        }
        Failure::new(IO, format!("{} cannot be written: {e}", path.display()))
    }
}

impl Signer {
    pub fn new(name: &str, days: i64) -> Result<Signer, Failure> {
        let authority = Authority::new(name, days.saturating_mul(DAY_S)).map_err(unusable_name)?;
        let expires_ms = time::wall_ms().saturating_add(days.saturating_mul(super::DAY_MS));
        Ok(Signer { authority, expires_ms })
    }

    pub fn keep(&self, folder: &Folder, stem: &str) -> Result<(), Failure> {
        folder.keep(stem, self.authority.cert_pem(), &self.authority.key_pem())
    }

    /// Signs a certificate for `days`, but at most until the CA expires.
    pub fn sign(
        &self,
        name: &str,
        hosts: &[String],
        uri: Option<&str>,
        days: i64,
    ) -> Result<Issued, Failure> {
        let own_s = (self.expires_ms - time::wall_ms()) / 1_000;
        if own_s <= 0 {
            let problem = "the CA has expired, and no node or client trusts new certificates of it";
            return Err(Failure::new(CONFIG, format!("{problem}; make a new one (docs/tls.md)")));
        }
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let valid_s = days.saturating_mul(DAY_S).min(own_s);
        self.authority.issue(&Leaf { name, hosts: &hosts, uri, valid_s }).map_err(unusable_name)
    }
}

fn unusable_name(e: rowlock_tls::TlsError) -> Failure {
    Failure::new(crate::exit::USAGE, e)
}

fn already_exists(path: &Path) -> Failure {
    let problem = format!("{} exists, and nothing was overwritten", path.display());
    Failure::new(DATA_FOLDER, format!("{problem}; `rowlock tls renew` renews, --dir names another folder"))
}

fn unusable(path: &Path, e: &std::io::Error, remedy: &str) -> Failure {
    Failure::new(DATA_FOLDER, format!("{} cannot be used: {e}; {remedy}", path.display()))
}
