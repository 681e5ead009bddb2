//! Disk as seen by one life of a process. After that life all operations fail: a killed process runs no
//! cleanup, so the cleanup of dropped tasks must have no effect.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rowlock_env::world::{Disk, DiskFile, Open};

use super::HostDisk;
use super::state::{Life, State};
use super::stats::Op;
use super::tree::{DirEntry, Ino};

pub(super) struct Mount {
    pub host: Arc<HostDisk>,
    pub life: Life,
}

struct OpenFile {
    host: Arc<HostDisk>,
    life: Life,
    ino: Ino,
}

struct Lock {
    host: Arc<HostDisk>,
    life: Life,
    ino: Ino,
}

impl Mount {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        self.host.with(self.life, f)
    }
}

impl Disk for Mount {
    fn is_dir(&self, path: &Path) -> bool {
        self.with(|state| Ok(state.tree.is_dir(state.tree.find(path)?))).unwrap_or(false)
    }

    fn exists(&self, path: &Path) -> bool {
        self.with(|state| state.tree.find(path)).is_ok()
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            if state.tree.find(path).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let entry = state.tree.entry(path)?;
            state.begin(Op::CreateDir)?;
            state.tree.make_dir(&entry);
            Ok(())
        })
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let ino = self.with(|state| {
            let entry = state.tree.entry(path)?;
            let ino = match (state.tree.at(&entry), how) {
                (Some(_), Open::New) => return Err(io::ErrorKind::AlreadyExists.into()),
                (None, Open::Existing) => return Err(io::ErrorKind::NotFound.into()),
                (None, Open::New | Open::Empty) => {
                    state.begin(Op::Create)?;
                    state.tree.make_file(&entry)
                }
                (Some(ino), Open::Existing) => ino,
                (Some(ino), Open::Empty) => {
                    if state.tree.file(ino)?.size() > 0 {
                        state.begin(Op::SetLen)?;
                        state.tree.file(ino)?.set_len(0);
                    }
                    ino
                }
            };
            state.tree.file(ino)?.handles += 1;
            Ok(ino)
        })?;
        Ok(Arc::new(OpenFile { host: self.host.clone(), life: self.life, ino }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with(|state| {
            let (from, to) = (state.tree.entry(from)?, state.tree.entry(to)?);
            if from.dir != to.dir {
                let text = "the simulated disk renames within a directory only";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            let moved = state.tree.at(&from).ok_or(io::ErrorKind::NotFound)?;
            if from.name == to.name {
                return Ok(());
            }
            if let Some(replaced) = state.tree.at(&to) {
                state.tree.file(replaced)?;
                state.tree.file(moved)?;
            }
            state.begin(Op::Rename)?;
            state.tree.rename(&from, &to.name);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            let entry = state.tree.entry(path)?;
            let ino = state.tree.at(&entry).ok_or(io::ErrorKind::NotFound)?;
            state.tree.file(ino)?;
            state.begin(Op::Remove)?;
            state.tree.unlink(&entry);
            Ok(())
        })
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            let entry = state.tree.entry(path)?;
            let ino = state.tree.at(&entry).ok_or(io::ErrorKind::NotFound)?;
            state.tree.dir(ino)?;
            // Remove one name at a time, as a real file system does: the power may fail between any two.
            for DirEntry { dir, name } in state.tree.below(&entry) {
                state.begin(Op::Remove)?;
                state.tree.unlink(&DirEntry { dir, name });
            }
            Ok(())
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.with(|state| Ok(state.tree.dir(state.tree.find(path)?)?.names().keys().cloned().collect()))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            let ino = state.tree.find(path)?;
            state.tree.dir(ino)?;
            state.begin(Op::SyncDir)?;
            state.tree.sync_dir(ino);
            Ok(())
        })
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        self.with(|state| Ok(state.free_bytes()))
    }

    fn lock(&self, path: &Path) -> io::Result<Arc<dyn Any + Send + Sync>> {
        let ino = self.with(|state| {
            let entry = state.tree.entry(path)?;
            let ino = match state.tree.at(&entry) {
                Some(ino) => ino,
                None => {
                    state.begin(Op::Create)?;
                    state.tree.make_file(&entry)
                }
            };
            state.tree.file(ino)?;
            if !state.locks.insert(ino) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            state.tree.file(ino)?.handles += 1;
            Ok(ino)
        })?;
        Ok(Arc::new(Lock { host: self.host.clone(), life: self.life, ino }))
    }
}

impl OpenFile {
    fn with<T>(&self, f: impl FnOnce(&mut State, Ino) -> io::Result<T>) -> io::Result<T> {
        self.host.with(self.life, |state| f(state, self.ino))
    }
}

impl DiskFile for OpenFile {
    fn size(&self) -> io::Result<u64> {
        self.with(|state, ino| Ok(state.tree.file(ino)?.size()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|state, ino| {
            state.begin(Op::SetLen)?;
            state.tree.file(ino)?.set_len(len);
            Ok(())
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.with(|state, ino| state.allocate(ino, len))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|state, ino| {
            let count = state.tree.file(ino)?.read(buf, offset);
            state.stats.bytes_read += count as u64;
            Ok(count)
        })
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.with(|state, ino| state.write(ino, buf, offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, ino| state.sync(ino))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.host.close(self.life, |state| state.tree.close(self.ino));
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.host.close(self.life, |state| {
            state.locks.remove(&self.ino);
            state.tree.close(self.ino);
        });
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile").field("ino", &self.ino).field("life", &self.life).finish_non_exhaustive()
    }
}
