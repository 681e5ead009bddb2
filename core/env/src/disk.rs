//! Files with explicit flushes. All functions block: call them at start or from [`crate::worker`].
//!
//! Nothing is durable before the return of `sync_data` (content) and `Dir::sync` (names). After a failed
//! flush the content of the page cache is unknown: the caller must stop, not retry.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::any::Any;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::world::{self, Disk, DiskFile, Open};

/// Permissions of new files: the owner only.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// Permission bits of the group and of other users.
const RIGHTS_OF_OTHERS: u32 = 0o077;
/// Permission bits for traversing a directory as another user.
const SEARCH_OF_OTHERS: u32 = 0o011;

/// Opens a pipe without waiting for its writer. Regular files ignore the flag.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// A directory; names inside are plain file names.
#[derive(Clone)]
pub struct Dir {
    path: PathBuf,
    /// Disks of the opening simulated host.
    disk: Option<Arc<dyn Disk>>,
}

/// An open file, read and written at offsets.
#[derive(Debug)]
pub struct File {
    inner: FileIn,
}

#[derive(Debug)]
enum FileIn {
    Reality(fs::File),
    World(Arc<dyn DiskFile>),
}

/// Exclusive lock of a directory, until the drop or the end of the process.
#[derive(Debug)]
pub struct DirLock {
    _held: HeldLock,
}

#[derive(Debug)]
enum HeldLock {
    Reality { _file: fs::File },
    World { _lock: Arc<dyn Any + Send + Sync> },
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dir").field("path", &self.path).finish_non_exhaustive()
    }
}

fn not_a_directory(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotADirectory, format!("{} is not a directory", path.display()))
}

/// Refuses a pipe, a socket and a folder. Accepts devices: tests use failing devices.
fn regular(file: fs::File) -> io::Result<fs::File> {
    let kind = file.metadata()?.file_type();
    let refusal = io::Error::new(io::ErrorKind::InvalidInput, "this is not a regular file");
    if kind.is_file() || kind.is_char_device() { Ok(file) } else { Err(refusal) }
}

fn parent(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

impl Dir {
    pub fn open(path: &Path) -> io::Result<Dir> {
        let disk = world::current().map(|world| world.disk());
        let is_dir = match &disk {
            Some(disk) if disk.exists(path) => disk.is_dir(path),
            Some(_) => return Err(io::ErrorKind::NotFound.into()),
            None => fs::metadata(path)?.is_dir(),
        };
        if is_dir { Ok(Dir { path: path.to_owned(), disk }) } else { Err(not_a_directory(path)) }
    }

    /// Opens a directory, or creates it durably with its parents.
    pub fn create(path: &Path) -> io::Result<Dir> {
        if let Some(world) = world::current() {
            create_in(&*world.disk(), path)?;
            return Dir::open(path);
        }
        let above = parent(path).unwrap_or(Path::new("."));
        if path.is_dir() {
            // A former process may have been killed before flushing the name. An unreadable parent directory
            // means that another user made the name, long before.
            match fs::File::open(above) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                opened => opened?.sync_all()?,
            }
            return Dir::open(path);
        }
        if let Some(parent) = parent(path) {
            Dir::create(parent)?;
        }
        match fs::DirBuilder::new().mode(DIR_MODE).create(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        fs::File::open(above)?.sync_all()?;
        Dir::open(path)
    }

    /// Removes the permissions of the group and of other users from the directory and its files. Returns true
    /// if there were any.
    ///
    /// # Errors
    /// Another user owns a file, or the file system has no permissions.
    pub fn make_private(&self) -> io::Result<bool> {
        if self.disk.is_some() {
            return Ok(false);
        }
        // Changes the directory first: from then on no other user can open its files.
        let mut had = take_rights_of_others(&self.path)?;
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                had |= take_rights_of_others(&entry.path())?;
            }
        }
        Ok(had)
    }

    /// Returns true if users other than the owner may read or write a file: the file's permissions allow it,
    /// and no parent directory prevents it.
    pub fn is_open_to_others(&self, name: &str) -> io::Result<bool> {
        if self.disk.is_some() || fs::metadata(self.path.join(name))?.mode() & RIGHTS_OF_OTHERS == 0 {
            return Ok(false);
        }
        for directory in fs::canonicalize(&self.path)?.ancestors() {
            if fs::metadata(directory)?.mode() & SEARCH_OF_OTHERS == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn sub(&self, name: &str) -> io::Result<Dir> {
        Dir::create(&self.path.join(name))
    }

    /// Creates an empty file; fails if the name exists.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        let mut options = fs::OpenOptions::new();
        self.open_as(name, Open::New, options.read(true).write(true).create_new(true).mode(FILE_MODE))
    }

    /// Opens an existing file for reading and writing.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        self.open_as(name, Open::Existing, fs::OpenOptions::new().read(true).write(true))
    }

    /// Opens an existing file for reading: another user may own the file.
    pub fn open_to_read(&self, name: &str) -> io::Result<File> {
        // A blocking open of a pipe would wait for the pipe's writer.
        let mut options = fs::OpenOptions::new();
        let file = self.open_as(name, Open::Existing, options.read(true).custom_flags(NONBLOCK))?;
        match file.inner {
            FileIn::Reality(file) => Ok(File { inner: FileIn::Reality(regular(file)?) }),
            FileIn::World(_) => Ok(file),
        }
    }

    fn open_as(&self, name: &str, how: Open, options: &fs::OpenOptions) -> io::Result<File> {
        let path = self.path.join(name);
        let inner = match &self.disk {
            Some(disk) => FileIn::World(disk.open(&path, how)?),
            None => FileIn::Reality(options.open(path)?),
        };
        Ok(File { inner })
    }

    /// Reads the whole content of a file.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        if self.disk.is_none() {
            return fs::read(self.path.join(name));
        }
        let file = self.open_to_read(name)?;
        let mut content = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut content, 0)?;
        Ok(content)
    }

    /// Writes `content` to `name` durably, all or nothing: a reader and a crash see the old or the new file.
    pub fn write_atomic(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.tmp");
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(FILE_MODE);
        let file = self.open_as(&temporary, Open::Empty, options)?;
        file.write_all_at(content, 0)?;
        file.sync_data()?;
        self.rename(&temporary, name)?;
        self.sync()
    }

    /// Renames a file and replaces an existing target. Durable after [`Dir::sync`].
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        match &self.disk {
            Some(disk) => disk.rename(&from, &to),
            None => fs::rename(from, to),
        }
    }

    /// Removes a file. Durable after [`Dir::sync`].
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        match &self.disk {
            Some(disk) => disk.remove(&path),
            None => fs::remove_file(path),
        }
    }

    pub fn remove_all(self) -> io::Result<()> {
        match &self.disk {
            Some(disk) => disk.remove_all(&self.path),
            None => fs::remove_dir_all(&self.path),
        }
    }

    pub fn exists(&self, name: &str) -> bool {
        let path = self.path.join(name);
        match &self.disk {
            Some(disk) => disk.exists(&path),
            None => path.exists(),
        }
    }

    /// Returns the names in the directory, sorted. Skips names outside UTF-8: Rowlock writes no such names.
    pub fn list(&self) -> io::Result<Vec<String>> {
        if let Some(disk) = &self.disk {
            return disk.list(&self.path);
        }
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
        match &self.disk {
            Some(disk) => disk.sync_dir(&self.path),
            None => fs::File::open(&self.path)?.sync_all(),
        }
    }

    /// Returns the bytes available to this user in the directory's file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        if let Some(disk) = &self.disk {
            return disk.free_bytes(&self.path);
        }
        let system = rustix::fs::statvfs(&self.path)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Locks the directory for this process; fails with `WouldBlock` if another process has the lock.
    pub fn lock(&self, name: &str) -> io::Result<DirLock> {
        let path = self.path.join(name);
        if let Some(disk) = &self.disk {
            return Ok(DirLock { _held: HeldLock::World { _lock: disk.lock(&path)? } });
        }
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(FILE_MODE).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(DirLock { _held: HeldLock::Reality { _file: file } }),
            Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(e)) => Err(e),
        }
    }
}

fn take_rights_of_others(path: &Path) -> io::Result<bool> {
    let mode = fs::metadata(path)?.mode();
    if mode & RIGHTS_OF_OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & !RIGHTS_OF_OTHERS))?;
    if fs::metadata(path)?.mode() & RIGHTS_OF_OTHERS != 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the file system keeps no rights"));
    }
    Ok(true)
}

/// Does the work of [`Dir::create`] on a simulated disk.
fn create_in(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if disk.is_dir(path) {
        return parent(path).map_or(Ok(()), |parent| disk.sync_dir(parent));
    }
    let Some(parent) = parent(path) else { return Err(not_a_directory(path)) };
    create_in(disk, parent)?;
    match disk.create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    disk.sync_dir(parent)
}

impl File {
    pub fn len(&self) -> io::Result<u64> {
        match &self.inner {
            FileIn::Reality(file) => Ok(file.metadata()?.len()),
            FileIn::World(file) => file.size(),
        }
    }

    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends the file with zeroes.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.inner {
            FileIn::Reality(file) => file.set_len(len),
            FileIn::World(file) => file.set_len(len),
        }
    }

    /// Reserves blocks up to `len` and extends the file, so that later writes neither lack space nor change
    /// metadata. Writes zeroes on a file system without reservation.
    pub fn allocate(&self, len: u64) -> io::Result<()> {
        let file = match &self.inner {
            FileIn::Reality(file) => file,
            FileIn::World(file) => return file.allocate(len),
        };
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len) {
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

    /// Reads at `offset`; returns fewer bytes at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.inner {
            FileIn::Reality(file) => file.read_at(buf, offset),
            FileIn::World(file) => file.read_at(buf, offset),
        }
    }

    /// Fills `buf` from `offset`; fails with `UnexpectedEof` at an earlier end.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `buf` at `offset`. Not durable before a flush.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        match &self.inner {
            FileIn::Reality(file) => file.write_all_at(buf, offset),
            FileIn::World(file) => file.write_all_at(buf, offset),
        }
    }

    /// Advises the system to start writing these bytes to the disk, without waiting. Guarantees nothing: the
    /// call shortens the flush at the end of a large file.
    pub fn begin_writing_out(&self, offset: u64, len: u64) {
        if let (FileIn::Reality(file), Some(len)) = (&self.inner, std::num::NonZeroU64::new(len)) {
            // Linux starts to write the dirty pages and drops the clean pages; the pages of a recent write
            // are dirty. Other systems may ignore the advice.
            let _ = rustix::fs::fadvise(file, offset, Some(len), rustix::fs::Advice::DontNeed);
        }
    }

    /// Flushes the content (fdatasync). After an error the fate of all writes since the last success is
    /// unknown.
    pub fn sync_data(&self) -> io::Result<()> {
        match &self.inner {
            FileIn::Reality(file) => file.sync_data(),
            FileIn::World(file) => file.sync(),
        }
    }

    /// Flushes content and metadata (fsync).
    pub fn sync_all(&self) -> io::Result<()> {
        match &self.inner {
            FileIn::Reality(file) => file.sync_all(),
            FileIn::World(file) => file.sync(),
        }
    }
}

impl Dir {
    /// Returns the whole content of a regular file of at most `most` bytes. Refuses other kinds of files,
    /// such as the device `/dev/zero`, and a file growing beyond `most`.
    pub fn read_at_most(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let refused = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let mut content = Vec::new();
        match self.open_to_read(name)? {
            File { inner: FileIn::Reality(file) } => {
                if !file.metadata()?.is_file() {
                    return Err(refused("this is not a regular file".to_owned()));
                }
                file.take(most.saturating_add(1)).read_to_end(&mut content)?;
            }
            file @ File { inner: FileIn::World(_) } => {
                let len = file.len()?.min(most.saturating_add(1));
                content.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
                file.read_exact_at(&mut content, 0)?;
            }
        }
        if content.len() as u64 > most {
            return Err(refused(format!("this has more than {most} bytes")));
        }
        Ok(content)
    }
}

#[cfg(test)]
mod tests;
