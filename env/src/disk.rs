//! Files with explicit flushes. Everything here blocks: call it at start-up or from [`crate::worker`].
//!
//! Nothing is durable before `sync_data` (content) and `Dir::sync` (names) have returned. After a failed flush the
//! content of the page cache is unknown: the caller must stop, not retry.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A directory; names inside it are plain file names.
#[derive(Clone, Debug)]
pub struct Dir {
    path: PathBuf,
}

/// An open file, read and written at offsets.
#[derive(Debug)]
pub struct File {
    inner: fs::File,
}

/// An exclusive hold on a directory, as long as it lives and the process does.
#[derive(Debug)]
pub struct DirLock {
    _file: fs::File,
}

impl Dir {
    /// An existing directory.
    pub fn open(path: &Path) -> io::Result<Dir> {
        if !fs::metadata(path)?.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("{} is not a directory", path.display()),
            ));
        }
        Ok(Dir { path: path.to_owned() })
    }

    /// A directory, created durably with its parents if it is absent.
    pub fn create(path: &Path) -> io::Result<Dir> {
        if !path.is_dir() {
            if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                Dir::create(parent)?;
            }
            match fs::create_dir(path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            fs::File::open(parent)?.sync_all()?;
        }
        Dir::open(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory inside this one, created if absent.
    pub fn sub(&self, name: &str) -> io::Result<Dir> {
        Dir::create(&self.path.join(name))
    }

    /// A new, empty file; an error if the name is taken.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        let inner =
            fs::OpenOptions::new().read(true).write(true).create_new(true).open(self.path.join(name))?;
        Ok(File { inner })
    }

    /// An existing file, to read and write.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        let inner = fs::OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(File { inner })
    }

    /// An existing file that is only read: it may belong to somebody else.
    pub fn open_to_read(&self, name: &str) -> io::Result<File> {
        Ok(File { inner: fs::File::open(self.path.join(name))? })
    }

    /// The whole content of a file.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(name))
    }

    /// Puts `content` under `name`, durably, all or nothing: a reader and a crash see the old or the new file.
    pub fn write_atomic(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.tmp");
        let path = self.path.join(&temporary);
        let file = File { inner: fs::File::create(path)? };
        file.write_all_at(content, 0)?;
        file.sync_data()?;
        self.rename(&temporary, name)?;
        self.sync()
    }

    /// Renames; an existing target is replaced. Durable after [`Dir::sync`].
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    /// Removes a file. Durable after [`Dir::sync`].
    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    /// Removes the directory and everything in it.
    pub fn remove_all(self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }

    /// There is a file of this name.
    pub fn exists(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// The names in the directory, sorted. Names that are not UTF-8 are left out: none of ours are.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Makes creations, renames and removals of names durable.
    pub fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    /// Bytes that are free for us on the file system of the directory.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let system = rustix::fs::statvfs(&self.path)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Takes the directory for this process alone; `WouldBlock` if another has it.
    pub fn lock(&self, name: &str) -> io::Result<DirLock> {
        let path = self.path.join(name);
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(DirLock { _file: file }),
            Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(e)) => Err(e),
        }
    }
}

impl File {
    /// Bytes in the file.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.inner.metadata()?.len())
    }

    /// There are none.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts or extends (with zeroes) the file.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    /// Reserves blocks up to `len` and extends the file to it, so that later writes neither fail for space nor change
    /// metadata. Where the file system cannot, zeroes are written.
    pub fn allocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.inner, rustix::fs::FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.fill_with_zeroes(len),
            Err(e) => Err(e.into()),
        }
    }

    fn fill_with_zeroes(&self, len: u64) -> io::Result<()> {
        let zeroes = [0u8; 1 << 16];
        let mut at = self.len()?;
        while at < len {
            let n = usize::try_from(len - at).unwrap_or(usize::MAX).min(zeroes.len());
            self.write_all_at(&zeroes[..n], at)?;
            at += n as u64;
        }
        Ok(())
    }

    /// Reads at `offset`; fewer bytes than asked for at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }

    /// Fills `buf` from `offset`; `UnexpectedEof` if the file ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buf, offset)
    }

    /// Writes all of `buf` at `offset`. Not durable before a flush.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(buf, offset)
    }

    /// Flushes content (fdatasync). After an error nothing is known about what was written since the last success.
    pub fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    /// Flushes content and metadata (fsync).
    pub fn sync_all(&self) -> io::Result<()> {
        self.inner.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_read_renamed_and_listed_in_order() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::create(&temp.path().join("a/b")).expect("creates parents");
        let file = dir.create_new("two").expect("new file");
        assert!(dir.create_new("two").is_err());
        file.allocate(8192).expect("allocates");
        assert_eq!(file.len().expect("len"), 8192);
        file.write_all_at(b"hello", 100).expect("writes");
        file.sync_data().expect("flushes");
        let mut buf = [0; 5];
        dir.open_file("two").expect("opens").read_exact_at(&mut buf, 100).expect("reads");
        assert_eq!(&buf, b"hello");
        dir.write_atomic("one", b"1").expect("writes");
        dir.write_atomic("one", b"2").expect("replaces");
        assert_eq!(dir.read("one").expect("reads"), b"2");
        dir.rename("two", "three").expect("renames");
        assert_eq!(dir.list().expect("lists"), ["one", "three"]);
    }

    #[test]
    fn a_locked_directory_cannot_be_locked_again_until_released() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        let lock = dir.lock("LOCK").expect("free");
        assert_eq!(dir.lock("LOCK").expect_err("taken").kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        assert!(dir.lock("LOCK").is_ok());
    }
}
