//! The file of a backup on this machine: read as a stream, and made all or nothing.

use std::io::{self, Read, Write};
use std::path::Path;

use rowlock_env::disk::{Dir, File};

use crate::exit::{DATA_FOLDER, Failure, IO, USAGE};

/// Bytes that are read or written at once.
const CHUNK_BYTES: usize = 256 << 10;

/// The folder of a file, and the file's name in it.
fn place(path: &Path) -> Result<(Dir, &str), Failure> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::new(USAGE, format!("{} is no name of a file", path.display())))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = Dir::open(folder).map_err(|e| Failure::new(IO, format!("{}: {e}", folder.display())))?;
    Ok((dir, name))
}

/// A file that is there.
pub(super) struct Source {
    file: File,
    length: u64,
    at: u64,
    chunk: Vec<u8>,
    used: usize,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Source, Failure> {
        let (dir, name) = place(path)?;
        let failed = |e: io::Error| Failure::new(IO, format!("{}: {e}", path.display()));
        let file = dir.open_to_read(name).map_err(failed)?;
        let length = file.len().map_err(failed)?;
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

/// A file in the making. Until it is kept it has another name; dropped before, it leaves nothing.
pub(super) struct Target {
    dir: Dir,
    name: String,
    file: File,
    len: u64,
    buffer: Vec<u8>,
    is_kept: bool,
}

impl Target {
    /// For the file at `path`, which must not exist unless it is to be replaced. Only its owner may read it.
    pub(super) fn create(path: &Path, replace: bool) -> Result<Target, Failure> {
        let (dir, name) = place(path)?;
        if !replace && dir.exists(name) {
            let what =
                format!("{} is there already; name another file, or replace it with --force", path.display());
            return Err(Failure::new(DATA_FOLDER, what));
        }
        let part = part_of(name);
        // What a command that was killed has left.
        if dir.exists(&part) {
            dir.remove(&part).map_err(|e| Failure::new(IO, format!("{part}: {e}")))?;
        }
        let file = dir.create_new(&part);
        let file = file.map_err(|e| Failure::new(DATA_FOLDER, format!("{}: {e}", path.display())))?;
        Ok(Target { dir, name: name.to_owned(), file, len: 0, buffer: Vec::new(), is_kept: false })
    }

    /// Gives the file its name, durably.
    pub(super) fn keep(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_all()?;
        self.dir.rename(&part_of(&self.name), &self.name)?;
        self.is_kept = true;
        self.dir.sync()
    }
}

fn part_of(name: &str) -> String {
    format!("{name}.part")
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.len)?;
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.dir.remove(&part_of(&self.name)); // the next one that is made removes what is left
        }
    }
}
