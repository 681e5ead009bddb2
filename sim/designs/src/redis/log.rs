//! Append-only file: flushed after every change, every second, or absent. After a power loss the server has
//! the flushed changes, and with luck more; a truncated end is dropped (`aof-load-truncated yes`).

use std::io;
use std::path::Path;

use rowlock_env::disk::{Dir, File};
use serde::{Deserialize, Serialize};

use super::core::{Effect, Keyspace};

/// Flush policy of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    None,
    /// `appendfsync everysec`, the setting that Redis recommends.
    EverySecond,
    Always,
}

#[derive(Serialize, Deserialize)]
enum Record {
    Changes(Vec<Effect>),
    /// Full copy from the primary; all earlier records are void.
    Copy(Keyspace),
}

pub struct Log {
    file: Option<File>,
    persistence: Persistence,
    end: u64,
    is_dirty: bool,
}

const DIRECTORY: &str = "/var/lib/redis";
const NAME: &str = "appendonly.aof";

impl Log {
    /// Opens the host's file and replays its content.
    pub fn open(persistence: Persistence) -> io::Result<(Log, Keyspace)> {
        if persistence == Persistence::None {
            return Ok((Log { file: None, persistence, end: 0, is_dirty: false }, Keyspace::default()));
        }
        let dir = Dir::create(Path::new(DIRECTORY))?;
        if !dir.exists(NAME) {
            let file = dir.create_new(NAME)?;
            dir.sync()?;
            return Ok((Log { file: Some(file), persistence, end: 0, is_dirty: false }, Keyspace::default()));
        }
        let (keys, end) = replay(&dir.read(NAME)?);
        let file = dir.open_file(NAME)?;
        file.set_len(end)?;
        file.sync_data()?;
        Ok((Log { file: Some(file), persistence, end, is_dirty: false }, keys))
    }

    /// Writes changes; with `appendfsync always` the changes are durable afterwards.
    pub fn append(&mut self, effects: &[Effect]) -> io::Result<()> {
        self.write(&Record::Changes(effects.to_vec()))
    }

    pub fn restart_with(&mut self, keys: &Keyspace) -> io::Result<()> {
        self.write(&Record::Copy(keys.clone()))
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let body = serde_json::to_vec(record)?;
        let len = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend(body);
        file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        self.is_dirty = true;
        if self.persistence == Persistence::Always { self.flush() } else { Ok(()) }
    }

    /// Flushes all written changes.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = &self.file
            && self.is_dirty
        {
            file.sync_data()?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

/// Returns the keys after a file's whole records, and the length of these records.
fn replay(bytes: &[u8]) -> (Keyspace, u64) {
    let (mut keys, mut rest) = (Keyspace::default(), bytes);
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let len = u32::from_be_bytes(*len) as usize;
        let Some(body) = after.get(..len) else { break };
        match serde_json::from_slice(body) {
            Ok(Record::Changes(effects)) => effects.into_iter().for_each(|effect| keys.apply(effect)),
            Ok(Record::Copy(copy)) => keys = copy,
            Err(_) => break,
        }
        rest = &after[len..];
    }
    (keys, (bytes.len() - rest.len()) as u64)
}
