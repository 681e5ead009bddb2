//! Lease file of `rowlock acquire`: all that a later command needs to release the lock, on any machine.
//!
//! The file has the secret of the session and is readable for its owner alone. It is replaced as a whole.
//! Writers create files under names that no other user can have prepared, also in `/tmp`.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rowlock_client::{Claim, FencingToken, SessionTicket};
use rowlock_env::disk::Dir;
use rowlock_env::{rng, time};
use serde_json::{Value, json};

use crate::exit::{DATA_FOLDER, Failure, IO, REFUSED};
use crate::moment::rfc3339;

/// Version of the format: raised when an older program would misread a file.
const VERSION: u64 = 1;
const VERSION_KEY: &str = "rowlock_lease";
/// Largest size of a lease file, in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// Held lock, and the right to its session.
#[derive(Debug)]
pub struct Lease {
    /// Lock as typed by the user.
    pub lock: String,
    /// Queue znode (path on the server) and fencing token.
    pub claim: Claim,
    pub ticket: SessionTicket,
    pub endpoints: String,
    /// Id of the cluster, if its servers report one.
    pub cluster: Option<String>,
    pub ttl_ms: i64,
    /// Time of the grant, by this machine's clock.
    pub acquired_ms: i64,
    /// Time until which the lock is certainly held, unless the cluster takes it away.
    pub expires_ms: i64,
}

impl Lease {
    /// Returns the document for people and programs: without the secret.
    pub fn public(&self) -> Value {
        json!({
            VERSION_KEY: VERSION,
            "lock": self.lock,
            "queue_znode": &*self.claim.path,
            "token": self.claim.token.0.to_string(),
            "endpoints": self.endpoints,
            "cluster_id": self.cluster,
            "ttl_ms": self.ttl_ms,
            "acquired_ms": self.acquired_ms,
            "expires_ms": self.expires_ms,
            "expires": rfc3339(self.expires_ms),
        })
    }

    fn document(&self) -> String {
        let mut document = self.public();
        document["secret"] = self.ticket.reveal().into();
        format!("{document:#}\n")
    }

    fn parse(bytes: &[u8]) -> Result<Lease, String> {
        let document: Value = serde_json::from_slice(bytes).map_err(|_| "it is not JSON".to_owned())?;
        match document[VERSION_KEY].as_u64() {
            Some(VERSION) => {}
            Some(version) => {
                return Err(format!("its version is {version}, and this rowlock reads version {VERSION}"));
            }
            None => return Err(format!("it has no field {VERSION_KEY:?}")),
        }
        let wrong = |key: &str| format!("its field {key:?} is missing or malformed");
        let text = |key: &str| document[key].as_str().map(str::to_owned).ok_or_else(|| wrong(key));
        let number = |key: &str| document[key].as_i64().filter(|n| *n >= 0).ok_or_else(|| wrong(key));
        let token = text("token")?.parse().map(FencingToken).map_err(|_| wrong("token"))?;
        Ok(Lease {
            lock: text("lock")?,
            claim: Claim { path: text("queue_znode")?.into(), token },
            ticket: text("secret")?.parse().map_err(|_| wrong("secret"))?,
            endpoints: text("endpoints")?,
            cluster: document["cluster_id"].as_str().map(str::to_owned),
            ttl_ms: number("ttl_ms")?,
            acquired_ms: number("acquired_ms")?,
            expires_ms: number("expires_ms")?,
        })
    }
}

/// Place of a lease file. Dropping a reserved place that was not written removes the empty file.
pub struct LeaseFile {
    folder: Dir,
    name: String,
    shown: PathBuf,
    is_reserved: bool,
}

impl Drop for LeaseFile {
    fn drop(&mut self) {
        if self.is_reserved {
            // A file that stays is empty, and the next `acquire` replaces it.
            let _ = self.folder.remove(&self.name);
        }
    }
}

impl LeaseFile {
    pub fn at(path: &Path) -> Result<LeaseFile, Failure> {
        let shown = path.display();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Failure::new(DATA_FOLDER, format!("{shown} is not a file name")))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = Dir::open(parent).map_err(|e| {
            Failure::new(DATA_FOLDER, format!("cannot open folder {}: {e}", parent.display()))
        })?;
        Ok(LeaseFile { folder, name: name.to_owned(), shown: path.to_owned(), is_reserved: false })
    }

    pub fn path(&self) -> &Path {
        &self.shown
    }

    /// Creates the file, empty, before the lock is taken: the lease can then be written. Replaces an empty
    /// file, left by a killed `acquire`, and a lease whose time is over.
    pub fn reserve(&mut self) -> Result<(), Failure> {
        match self.folder.create_new(&self.name) {
            Ok(_) => self.is_reserved = true,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => self.check_replaceable()?,
            Err(e) => return Err(self.failed("create", &e)),
        }
        Ok(())
    }

    fn check_replaceable(&self) -> Result<(), Failure> {
        let shown = self.shown.display();
        let bytes = self.folder.read_at_most(&self.name, BYTES_MAX).map_err(|e| self.failed("read", &e))?;
        let problem = match Lease::parse(&bytes) {
            _ if bytes.is_empty() => return Ok(()),
            Ok(lease) if lease.expires_ms < time::wall_ms() => return Ok(()),
            Ok(lease) => {
                let until = rfc3339(lease.expires_ms);
                format!(
                    "{shown} has a lease of {} until {until}; release it first: rowlock release --lease {shown}",
                    lease.lock
                )
            }
            Err(why) => format!("{shown} exists and is no lease file: {why}; name another file by --lease"),
        };
        Err(Failure::new(DATA_FOLDER, problem))
    }

    pub fn read(&self) -> Result<Lease, Failure> {
        let shown = self.shown.display();
        let bytes = match self.folder.read_at_most(&self.name, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let remedy = "its lease was released before, or `rowlock acquire` wrote another file";
                return Err(Failure::new(REFUSED, format!("{shown}: no such lease file; {remedy}")));
            }
            Err(e) => return Err(self.failed("read", &e)),
        };
        Lease::parse(&bytes).map_err(|why| {
            let remedy = "a lock that it may stand for is free when its time is over (`rowlock locks`)";
            Failure::new(DATA_FOLDER, format!("{shown} is no lease file that can be used: {why}; {remedy}"))
        })
    }

    /// Writes the lease of a new lock as [`LeaseFile::write`] does, unless another `acquire` has written a
    /// lease there meanwhile.
    pub fn write_new(&mut self, lease: &Lease) -> Result<(), Failure> {
        self.check_replaceable()?;
        self.write(lease)
    }

    /// Writes the lease durably, all or nothing.
    pub fn write(&mut self, lease: &Lease) -> Result<(), Failure> {
        let temporary = format!("{}.{:016x}", self.name, rng::u64());
        let written = self.write_over(&temporary, &lease.document());
        if written.is_err() {
            // The file may not exist.
            let _ = self.folder.remove(&temporary);
        }
        written.map_err(|e| Failure::new(IO, format!("cannot write {}: {e}", self.shown.display())))?;
        self.is_reserved = false;
        Ok(())
    }

    fn write_over(&self, temporary: &str, document: &str) -> io::Result<()> {
        let file = self.folder.create_new(temporary)?;
        file.write_all_at(document.as_bytes(), 0)?;
        file.sync_data()?;
        self.folder.rename(temporary, &self.name)?;
        self.folder.sync()
    }

    /// Removes the file of a lease that has ended.
    pub fn remove(&self) -> Result<(), Failure> {
        match self.folder.remove(&self.name) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                let problem = format!("the lease has ended, but {} cannot be removed", self.shown.display());
                Err(Failure::new(IO, format!("{problem}: {e}")))
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, verb: &str, e: &io::Error) -> Failure {
        Failure::new(DATA_FOLDER, format!("cannot {verb} lease file {}: {e}", self.shown.display()))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the real disk
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn lease(expires_ms: i64) -> Lease {
        Lease {
            lock: "nightly".to_owned(),
            claim: Claim { path: "/locks/nightly/_c_1-lock-0000000000".into(), token: FencingToken(41) },
            ticket: "1ab.00ff.2".parse().unwrap(),
            endpoints: "a:1,b:2/app".to_owned(),
            cluster: Some("c1".to_owned()),
            ttl_ms: 60_000,
            acquired_ms: 1_000,
            expires_ms,
        }
    }

    #[test]
    fn a_lease_is_read_back_and_only_its_file_has_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = LeaseFile::at(&folder.path().join("x.lease")).unwrap();
        file.reserve().unwrap();
        file.write(&lease(61_000)).unwrap();
        let mode = std::fs::metadata(folder.path().join("x.lease")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = file.read().unwrap();
        assert_eq!(read.document(), lease(61_000).document());
        assert!(read.document().contains("1ab.00ff.2") && !read.public().to_string().contains("00ff"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn a_live_lease_and_a_foreign_file_are_kept_while_leftovers_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lease");
        let reserve = || LeaseFile::at(&path).unwrap().reserve();
        std::fs::write(&path, "").unwrap();
        reserve().unwrap();
        std::fs::write(&path, lease(1).document()).unwrap();
        reserve().unwrap();
        std::fs::write(&path, lease(i64::MAX / 2).document()).unwrap();
        assert!(reserve().unwrap_err().message.contains("rowlock release --lease"));
        std::fs::write(&path, "precious").unwrap();
        assert!(reserve().unwrap_err().message.contains("is no lease file"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        reserve().unwrap();
        assert!(!path.exists(), "a lock that was not taken leaves no file");
    }

    #[test]
    fn every_cut_of_a_lease_file_is_refused() {
        let text = lease(61_000).document();
        for end in 0..text.len() - 2 {
            assert!(Lease::parse(&text.as_bytes()[..end]).is_err(), "{end}");
        }
        let newer = text.replacen("\"rowlock_lease\": 1", "\"rowlock_lease\": 2", 1);
        assert!(Lease::parse(newer.as_bytes()).unwrap_err().contains("version is 2"));
        for key in ["lock", "queue_znode", "token", "secret", "endpoints", "expires_ms"] {
            let mut document: Value = serde_json::from_str(&text).unwrap();
            document[key] = Value::Null;
            assert!(Lease::parse(document.to_string().as_bytes()).unwrap_err().contains(key), "{key}");
        }
    }
}
