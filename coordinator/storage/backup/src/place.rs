//! Local files of backups: read as a stream, and written all or nothing.

use std::io::{self, Read, Write};
use std::path::Path;

use rowlock_env::disk::{Dir, File};

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
