//! `/v1/backup`: the whole state, for superusers. The first request writes the state to a nameless file and
//! returns the header of the backup; each further request returns a chunk.
//!
//! Bounds: two files at once, each at most as large as the state. A file is dropped, and its disk space
//! freed, after a minute without a request for a chunk.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use rowlock_backup::file::Header;
use rowlock_backup::file::Spool;
use rowlock_env::decides;
use rowlock_env::disk::{Dir, File};
use rowlock_env::time::{self, Instant};
use rowlock_env::{rng, worker};
use rowlock_state::Frozen;
use rowlock_wal::limits::SNAPSHOT_PIECE_PAUSE;
use serde_json::{Value, json};

use super::{Refusal, Viewer};
use crate::limits::{BACKUP_PIECE_BYTES, BACKUPS_MAX};

/// Longest time between two requests for a backup.
const UNASKED_MAX: Duration = Duration::from_secs(60);

/// Open backups of this node. Clones share the backups.
#[derive(Clone)]
pub struct Backups {
    folder: PathBuf,
    cluster: String,
    open: Arc<Mutex<BTreeMap<u64, OpenBackup>>>,
}

struct OpenBackup {
    /// `None` while the file is being written.
    file: Option<Arc<File>>,
    bytes: u64,
    asked: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Id from the first response.
    pub backup: u64,
    /// Offset of the chunk in bytes.
    pub offset: u64,
}

impl Backups {
    /// Returns an empty set. `folder`: location of the temporary files; `cluster`: name in the header.
    pub fn new(folder: PathBuf, cluster: String) -> Backups {
        Backups { folder, cluster, open: Arc::default() }
    }

    /// Serves one request. Blocking: writing the file takes longer than a snapshot.
    pub(super) fn answer(
        &self,
        frozen: &Frozen,
        piece: Option<Piece>,
        reader: &Viewer,
    ) -> Result<Value, Refusal> {
        if decides!("backup-reader-is-stranger", !reader.is_super()) {
            return Err(Refusal::NotPermitted(
                "a backup contains all data: only superusers may fetch backups".to_owned(),
            ));
        }
        match piece {
            None => self.begin(frozen),
            Some(piece) => self.piece(piece),
        }
    }

    fn begin(&self, frozen: &Frozen) -> Result<Value, Refusal> {
        let backup = rng::u64() >> 1;
        {
            let (mut open, now) = (self.open.lock(), time::now());
            open.retain(|_, one| one.file.is_none() || now.saturating_since(one.asked) < UNASKED_MAX);
            if open.len() >= BACKUPS_MAX {
                return Err(Refusal::Busy);
            }
            open.insert(backup, OpenBackup { file: None, bytes: 0, asked: now });
        }
        let written = self.write(frozen, backup);
        let mut open = self.open.lock();
        let (file, bytes) = match written {
            Ok(written) => written,
            Err(error) => {
                open.remove(&backup);
                tracing::warn!(%error, "cannot write a backup");
                return Err(Refusal::NotNow(format!("the node could not write the backup: {error}")));
            }
        };
        open.insert(backup, OpenBackup { file: Some(Arc::new(file)), bytes, asked: time::now() });
        let header = Header::of(frozen.machine(), &self.cluster, bytes);
        Ok(json!({ "backup": backup.to_string(), "header": header, "piece_bytes": BACKUP_PIECE_BYTES }))
    }

    /// Writes the state to a file and unlinks the file's name, so dropping the file frees its space.
    fn write(&self, frozen: &Frozen, backup: u64) -> io::Result<(File, u64)> {
        let dir = Dir::open(&self.folder)?;
        let name = format!("backup-{backup:016x}.tmp");
        let file = dir.create_new(&name)?;
        dir.remove(&name)?;
        // Writes at the pace of a snapshot, to delay other writes of this disk only briefly.
        let mut spool = Spool::new(file, || worker::pause(SNAPSHOT_PIECE_PAUSE));
        frozen.encode(&mut spool)?;
        spool.finish()
    }

    fn piece(&self, Piece { backup, offset }: Piece) -> Result<Value, Refusal> {
        let gone =
            || Refusal::NotThere(format!("backup {backup} is no longer open at this node: begin again"));
        let (file, bytes) = {
            let mut open = self.open.lock();
            let one = open.get_mut(&backup).ok_or_else(gone)?;
            one.asked = time::now();
            (one.file.clone().ok_or_else(gone)?, one.bytes)
        };
        if offset > bytes {
            return Err(Refusal::BadQuestion(format!(
                "offset={offset} is beyond the backup's {bytes} bytes"
            )));
        }
        let length = (bytes - offset).min(BACKUP_PIECE_BYTES);
        let mut data = vec![0; usize::try_from(length).expect("Invariant: a chunk is small")];
        let read = file.read_exact_at(&mut data, offset);
        read.map_err(|error| Refusal::NotNow(format!("the node could not read the backup: {error}")))?;
        if offset + length == bytes {
            self.open.lock().remove(&backup);
        }
        Ok(json!({ "data": STANDARD.encode(data) }))
    }
}
