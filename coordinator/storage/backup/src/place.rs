//! The file of a backup on this machine: read as a stream, and made all or nothing.

use std::io::{self, Read, Write};
use std::path::Path;

use rowlock_env::disk::{Dir, File};

/// Bytes that are read or written at once.
const CHUNK_BYTES: usize = 256 << 10;
/// Suffix of a file's name until it is complete.
const PART: &str = ".part";

/// The folder of a file, and the file's name in it.
fn place(path: &Path) -> io::Result<(Dir, &str)> {
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
        let (dir, name) = place(path)?;
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

/// Bytes on their way into a file, in order. Written out as it goes: the disk has little left to do at
/// the end.
pub struct Spool {
    file: File,
    len: u64,
    buffer: Vec<u8>,
    /// After each chunk that is written: where other writes of the disk are not to wait.
    pause: fn(),
}

impl Spool {
    /// From the beginning of this file on, with this pause after each 256 KiB.
    pub fn new(file: File, pause: fn()) -> Spool {
        Spool { file, len: 0, buffer: Vec::new(), pause }
    }

    /// The file, and how many bytes it has. Not flushed to the disk.
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

/// A file in the making. Until it is kept it has another name; dropped before, it leaves nothing.
pub struct Target {
    dir: Dir,
    name: String,
    spool: Spool,
    is_kept: bool,
}

impl Target {
    /// For the file at `path`. Only its owner may read it.
    ///
    /// # Errors
    /// `AlreadyExists` if there is one, unless it is to be replaced.
    pub fn create(path: &Path, replace: bool) -> io::Result<Target> {
        let (dir, name) = place(path)?;
        Self::create_in(dir, name, replace, || ())
    }

    /// The same in a folder that is open, with this pause after each 256 KiB.
    pub fn create_in(dir: Dir, name: &str, replace: bool, pause: fn()) -> io::Result<Target> {
        if !replace && dir.exists(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is there already"));
        }
        let part = format!("{name}{PART}");
        // A process that was killed has left it.
        if dir.exists(&part) {
            dir.remove(&part)?;
        }
        let spool = Spool::new(dir.create_new(&part)?, pause);
        Ok(Target { dir, name: name.to_owned(), spool, is_kept: false })
    }

    /// Gives the file its name, durably. Gives its length.
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
