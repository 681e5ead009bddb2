//! File format of a backup.
//!
//! ```text
//!  0  magic          8 bytes
//!  8  version        u32, little-endian
//! 12  header length  u32, little-endian
//! 16  header: JSON, one object, with the build and the fingerprint of this form
//!     state: the blocks of a snapshot, as many bytes as the header says
//!     SHA-256 of everything before
//! ```
//!
//! Local files of backups: read as a stream, and written all or nothing.

use std::io::{self, Read, Write};
use std::path::Path;

use rowlock_env::decides;
use rowlock_env::disk::{Dir, File};
use rowlock_proto::ClusterId;
use rowlock_state::version::{COMMIT, RELEASE, this_build};
use rowlock_state::{Frozen, Layout, Machine, STATE_LOCK_MS, SnapshotError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const MAGIC: [u8; 8] = *b"RWLKBKUP";
/// Version of the file. The state inside has its own version.
pub const FORMAT_VERSION: u32 = 1;
/// Fingerprint of the file without the state, which has its own fingerprint. The test below has the sample.
const LAYOUT: Layout = Layout(0x8b59_a46d);
const HEADER_MAX_BYTES: u32 = 1 << 20;
const SUM_BYTES: usize = 32;

/// Origin and size of a backup. Readers ignore the additional fields of later releases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Release of the node.
    pub release: String,
    /// Commit of the node's build.
    pub commit: String,
    /// Fingerprint of the file's format.
    pub layout: Layout,
    pub cluster: String,
    /// Cluster id, in hexadecimal digits. `None` before the cluster's first id.
    pub cluster_id: Option<String>,
    /// Raft term of the last applied entry.
    pub term: u64,
    pub zxid: i64,
    /// Time of the last change by the leader's clock, in milliseconds since 1970.
    pub time_ms: i64,
    /// Number of znodes, including ephemeral znodes.
    pub znodes: u64,
    /// Number of open sessions. A restore ends these sessions.
    pub sessions: u64,
    /// Longest timeout ever granted to an open session, in milliseconds.
    pub longest_timeout_ms: u32,
    /// Fingerprint of the state, as in `/v1/status`.
    pub digest: String,
    /// Data of `/zookeeper/config`: the members and their addresses.
    pub members: String,
    pub state_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is not a backup of Rowlock")]
    NotABackup,
    #[error("has format version {0}, this release reads {FORMAT_VERSION}: use the release that made it")]
    Version(u32),
    /// Written by another build, and perhaps intact.
    #[error(
        "was made by another build of release {0}, and is not readable by this one ({ours}). It is not damaged: use that \
         build to restore it, or export it with that build and import it here",
        ours = this_build()
    )]
    OtherBuild(String),
    #[error("ends early: it is damaged, or was not written to its end")]
    Truncated,
    /// The bytes differ from the written bytes.
    #[error("is damaged: {0}")]
    Damaged(String),
    #[error("is damaged: {0}")]
    State(SnapshotError),
}

impl Header {
    /// Makes the header for a state with an encoding of `state_bytes`.
    pub fn of(machine: &Machine, cluster: &str, state_bytes: u64) -> Header {
        let counts = machine.counts();
        let members = machine.get_data("/zookeeper/config", &[]).ok().and_then(|(data, _)| data);
        Header {
            release: RELEASE.to_owned(),
            commit: COMMIT.to_owned(),
            layout: LAYOUT,
            cluster: cluster.to_owned(),
            cluster_id: machine.cluster().map(|id| id.to_string()),
            term: machine.last_entry().term,
            zxid: machine.last_zxid().0,
            time_ms: machine.time_ms(),
            znodes: counts.znodes,
            sessions: counts.sessions,
            longest_timeout_ms: longest_timeout_ms(machine),
            digest: digest_of(machine),
            members: members.map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default(),
            state_bytes,
        }
    }

    /// Returns the cluster id, if the cluster had an id.
    pub fn id(&self) -> Option<ClusterId> {
        self.cluster_id.as_ref()?.parse().ok()
    }
}

/// Returns the longest session timeout in milliseconds, or 0 without sessions. Excludes the locks of states:
/// their programs never give up, so no wait would be long enough.
pub fn longest_timeout_ms(machine: &Machine) -> u32 {
    let timeouts = machine.sessions().map(|(_, session)| session.longest_timeout_ms());
    timeouts.filter(|timeout_ms| *timeout_ms != STATE_LOCK_MS).max().unwrap_or(0)
}

pub fn digest_of(machine: &Machine) -> String {
    format!("{:016x}", machine.digest())
}

/// Writer of a backup: the header first, then the state through [`Write`], then [`Writer::finish`].
pub struct Writer<W> {
    out: W,
    sum: Sha256,
    /// Missing bytes of the state.
    missing: u64,
}

impl<W: Write> Writer<W> {
    pub fn begin(out: W, header: &Header) -> io::Result<Writer<W>> {
        let text = serde_json::to_vec_pretty(header).map_err(io::Error::other)?;
        let length = u32::try_from(text.len()).ok().filter(|length| *length <= HEADER_MAX_BYTES);
        let length = length.ok_or_else(|| io::Error::other("the header of the backup is too large"))?;
        let mut writer = Writer { out, sum: Sha256::new(), missing: header.state_bytes };
        for part in [&MAGIC[..], &FORMAT_VERSION.to_le_bytes(), &length.to_le_bytes(), &text] {
            writer.append(part)?;
        }
        Ok(writer)
    }

    /// Ends the file after the whole state, and returns the output for flushing.
    ///
    /// # Errors
    /// The output fails, or the state is shorter than the header's `state_bytes`.
    pub fn finish(mut self) -> io::Result<W> {
        if self.missing > 0 {
            return Err(io::Error::other(format!("{} bytes of the state are missing", self.missing)));
        }
        self.out.write_all(&self.sum.finalize())?;
        Ok(self.out)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.missing.checked_sub(bytes.len() as u64);
        self.missing = left.ok_or_else(|| io::Error::other("the state is larger than the header says"))?;
        self.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes the whole backup of a state.
pub fn write<W: Write>(frozen: &Frozen, cluster: &str, out: W) -> io::Result<W> {
    let mut counter = Counter(0);
    frozen.encode(&mut counter)?;
    let mut writer = Writer::begin(out, &Header::of(frozen.machine(), cluster, counter.0))?;
    frozen.encode(&mut writer)?;
    writer.finish()
}

struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads only the header, and detects no damage behind the header.
pub fn inspect(input: impl Read) -> Result<Header, BackupError> {
    Summed::new(input).header()
}

/// Reads a whole backup: verifies every byte, and builds the state.
pub fn read(input: impl Read) -> Result<(Header, Machine), BackupError> {
    let mut input = Summed::new(input);
    let header = input.header()?;
    let mut state = input.by_ref().take(header.state_bytes);
    let machine = Machine::decode(&mut state).map_err(|error| match error {
        SnapshotError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => BackupError::Truncated,
        SnapshotError::Io(error) => BackupError::Io(error),
        SnapshotError::OtherBuild { .. } | SnapshotError::Version(_) => {
            let Header { release, commit, .. } = &header;
            BackupError::OtherBuild(format!("{} ({})", release.escape_debug(), commit.escape_debug()))
        }
        error => BackupError::State(error),
    })?;
    if state.limit() > 0 {
        return Err(BackupError::Damaged(format!("{} bytes follow the state", state.limit())));
    }
    let expected = input.sum.clone().finalize();
    let mut written = [0; SUM_BYTES];
    input.fill(&mut written)?;
    if decides!("backup-bytes-differ", written[..] != expected[..]) {
        return Err(BackupError::Damaged("its checksum is that of another content".to_owned()));
    }
    if input.read(&mut [0])? != 0 {
        return Err(BackupError::Damaged("something follows its end".to_owned()));
    }
    let found = Header::of(&machine, &header.cluster, header.state_bytes);
    if decides!(
        "backup-differs-from-header",
        (&found.digest, found.zxid, found.znodes) != (&header.digest, header.zxid, header.znodes)
    ) {
        return Err(BackupError::Damaged("its header is that of another state".to_owned()));
    }
    Ok((header, machine))
}

#[derive(Deserialize)]
struct MadeBy {
    release: String,
    commit: Option<String>,
    layout: Option<Layout>,
}

impl MadeBy {
    fn refused(&self) -> BackupError {
        let commit = self.commit.as_deref().unwrap_or("of unknown commit");
        BackupError::OtherBuild(format!("{} ({})", self.release.escape_debug(), commit.escape_debug()))
    }
}

/// Reader with a checksum over all read bytes.
struct Summed<R> {
    input: R,
    sum: Sha256,
}

impl<R: Read> Summed<R> {
    fn new(input: R) -> Summed<R> {
        Summed { input, sum: Sha256::new() }
    }

    fn header(&mut self) -> Result<Header, BackupError> {
        let mut fixed = [0; 16];
        self.fill(&mut fixed)?;
        let (magic, rest) = fixed.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(BackupError::NotABackup);
        }
        let number = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        if number(0) != FORMAT_VERSION {
            return Err(BackupError::Version(number(0)));
        }
        if number(4) > HEADER_MAX_BYTES {
            return Err(BackupError::Damaged("its header has no believable length".to_owned()));
        }
        let mut text = vec![0; number(4) as usize];
        self.fill(&mut text)?;
        let damaged = |error| BackupError::Damaged(format!("its header: {error}"));
        let made_by: MadeBy = serde_json::from_slice(&text).map_err(damaged)?;
        if made_by.layout != Some(LAYOUT) {
            return Err(made_by.refused());
        }
        serde_json::from_slice(&text).map_err(damaged)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        self.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::Truncated,
            _ => BackupError::Io(error),
        })
    }
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }
}

const CHUNK_BYTES: usize = 256 << 10;
const PART: &str = ".part";

/// Splits a path into the opened folder and the file's name.
fn split_path(path: &Path) -> io::Result<(Dir, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "this is no name of a file"))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((Dir::open(folder)?, name))
}

pub struct Source {
    file: File,
    length: u64,
    at: u64,
    chunk: Vec<u8>,
    used: usize,
}

impl Source {
    pub fn open(path: &Path) -> io::Result<Source> {
        let (dir, name) = split_path(path)?;
        let file = dir.open_to_read(name)?;
        let length = file.len()?;
        Ok(Source { file, length, at: 0, chunk: Vec::new(), used: 0 })
    }
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.used == self.chunk.len() {
            let left = usize::try_from(self.length - self.at).unwrap_or(usize::MAX);
            self.chunk.resize(left.min(CHUNK_BYTES), 0);
            self.file.read_exact_at(&mut self.chunk, self.at)?;
            (self.at, self.used) = (self.at + self.chunk.len() as u64, 0);
        }
        let count = out.len().min(self.chunk.len() - self.used);
        out[..count].copy_from_slice(&self.chunk[self.used..self.used + count]);
        self.used += count;
        Ok(count)
    }
}

/// Sequential writer of a file. Starts the disk writes early: little remains for the final flush.
pub struct Spool {
    file: File,
    len: u64,
    buffer: Vec<u8>,
    /// Runs after each written chunk, and gives way to other disk writes.
    pause: fn(),
}

impl Spool {
    /// Writes from the beginning of `file`, with a `pause` after each 256 KiB.
    pub fn new(file: File, pause: fn()) -> Spool {
        Spool { file, len: 0, buffer: Vec::new(), pause }
    }

    /// Returns the file, not flushed to the disk, and its length in bytes.
    pub fn finish(mut self) -> io::Result<(File, u64)> {
        self.flush()?;
        Ok((self.file, self.len))
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
            (self.pause)();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.len)?;
        self.file.begin_writing_out(self.len, self.buffer.len() as u64);
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// A file under construction, under a temporary name until [`Target::keep`]. A drop before removes the file.
pub struct Target {
    dir: Dir,
    name: String,
    spool: Spool,
    is_kept: bool,
}

impl Target {
    /// Makes the file at `path`, readable by its owner only.
    ///
    /// # Errors
    /// `AlreadyExists` if the file exists and `replace` is false.
    pub fn create(path: &Path, replace: bool) -> io::Result<Target> {
        let (dir, name) = split_path(path)?;
        Self::create_in(dir, name, replace, || ())
    }

    /// Makes the file `name` in an open folder, with a `pause` after each 256 KiB.
    pub fn create_in(dir: Dir, name: &str, replace: bool, pause: fn()) -> io::Result<Target> {
        if !replace && dir.exists(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is there already"));
        }
        let part = format!("{name}{PART}");
        // Removes the leftover of a killed process.
        if dir.exists(&part) {
            dir.remove(&part)?;
        }
        let spool = Spool::new(dir.create_new(&part)?, pause);
        Ok(Target { dir, name: name.to_owned(), spool, is_kept: false })
    }

    /// Gives the file its final name, durably. Returns its length in bytes.
    pub fn keep(mut self) -> io::Result<u64> {
        self.spool.flush()?;
        self.spool.file.sync_all()?;
        self.dir.rename(&self.part(), &self.name)?;
        self.is_kept = true;
        self.dir.sync()?;
        Ok(self.spool.len)
    }

    fn part(&self) -> String {
        format!("{}{PART}", self.name)
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.spool.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.spool.flush()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.dir.remove(&self.part()); // the next one that is made removes what is left
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_that_of_the_sample() {
        let header = Header {
            release: "0.2.0".to_owned(),
            commit: "x".to_owned(),
            layout: Layout(0),
            cluster: "test".to_owned(),
            cluster_id: Some("7".to_owned()),
            term: 2,
            zxid: 3,
            time_ms: 4,
            znodes: 5,
            sessions: 6,
            longest_timeout_ms: 7,
            digest: "8".to_owned(),
            members: "m".to_owned(),
            state_bytes: 5,
        };
        let mut writer = Writer::begin(Vec::new(), &header).expect("memory takes everything");
        writer.write_all(b"state").expect("memory takes everything");
        let samples = Layout::of_samples([writer.finish().expect("it is whole")]);
        assert_eq!(LAYOUT, samples, "LAYOUT is to be {samples}");
    }
}
