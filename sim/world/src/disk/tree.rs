//! Directories and files, found by their paths. Without faults.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::directory::Directory;
use super::file::FileNode;
use super::image::mix;
use super::stats::Losses;
use crate::rng::Rng;

/// Number of a file or directory, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ino(u64);

const ROOT: Ino = Ino(0);

#[derive(Clone, Debug)]
enum Inode {
    Dir(Directory),
    File(FileNode),
}

#[derive(Clone, Debug)]
pub(super) struct Tree {
    inodes: BTreeMap<Ino, Inode>,
    made: u64,
}

/// Name in a directory. The entry may or may not exist.
#[derive(Clone, Debug)]
pub(super) struct DirEntry {
    pub dir: Ino,
    pub name: String,
}

impl Tree {
    /// Creates a tree with an empty root directory.
    pub fn new() -> Self {
        Tree { inodes: BTreeMap::from([(ROOT, Inode::Dir(Directory::default()))]), made: 1 }
    }

    pub fn find(&self, path: &Path) -> io::Result<Ino> {
        let mut at = ROOT;
        for component in path.components() {
            at = match component {
                Component::RootDir | Component::CurDir => at,
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
                    self.dir(at)?.get(name).ok_or(io::ErrorKind::NotFound)?
                }
                Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
            };
        }
        Ok(at)
    }

    /// Returns the entry at a path; its directory must exist.
    pub fn entry(&self, path: &Path) -> io::Result<DirEntry> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.find(path.parent().unwrap_or(Path::new("/")))?;
        self.dir(dir)?;
        Ok(DirEntry { dir, name: name.to_owned() })
    }

    pub fn at(&self, entry: &DirEntry) -> Option<Ino> {
        self.dir(entry.dir).ok().and_then(|dir| dir.get(&entry.name))
    }

    pub fn dir(&self, ino: Ino) -> io::Result<&Directory> {
        match self.inodes.get(&ino) {
            Some(Inode::Dir(dir)) => Ok(dir),
            Some(Inode::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub fn is_dir(&self, ino: Ino) -> bool {
        self.dir(ino).is_ok()
    }

    fn dir_mut(&mut self, ino: Ino) -> &mut Directory {
        match self.inodes.get_mut(&ino) {
            Some(Inode::Dir(dir)) => dir,
            _ => panic!(
                "Invariant: a entry is in a directory, and that is only removed when nothing refers to it"
            ),
        }
    }

    pub fn file(&mut self, ino: Ino) -> io::Result<&mut FileNode> {
        match self.inodes.get_mut(&ino) {
            Some(Inode::File(file)) => Ok(file),
            Some(Inode::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn make(&mut self, entry: &DirEntry, inode: Inode) -> Ino {
        assert!(self.at(entry).is_none(), "the entry is free");
        let ino = Ino(self.made);
        self.made += 1;
        self.inodes.insert(ino, inode);
        self.dir_mut(entry.dir).link(&entry.name, ino);
        ino
    }

    /// Creates an empty file at a free entry.
    pub fn make_file(&mut self, entry: &DirEntry) -> Ino {
        self.make(entry, Inode::File(FileNode::new()))
    }

    /// Creates an empty directory at a free entry.
    pub fn make_dir(&mut self, entry: &DirEntry) -> Ino {
        self.make(entry, Inode::Dir(Directory::default()))
    }

    /// Renames within a directory. The caller has checked that both entries are files, or that `to` is free.
    pub fn rename(&mut self, from: &DirEntry, to: &str) {
        let target = self.dir_mut(from.dir).get(to);
        self.lose_name(target);
        self.dir_mut(from.dir).rename(&from.name, to);
    }

    pub fn unlink(&mut self, entry: &DirEntry) {
        let target = self.at(entry);
        self.lose_name(target);
        self.dir_mut(entry.dir).unlink(&entry.name);
    }

    fn lose_name(&mut self, ino: Option<Ino>) {
        if let Some(Inode::File(file)) = ino.and_then(|ino| self.inodes.get_mut(&ino)) {
            file.named = false;
        }
    }

    /// Flushes the names of a directory to the medium.
    pub fn sync_dir(&mut self, ino: Ino) {
        if self.dir_mut(ino).sync() {
            self.sweep();
        }
    }

    /// Closes a handle of a file.
    pub fn close(&mut self, ino: Ino) {
        let Some(Inode::File(file)) = self.inodes.get_mut(&ino) else { return };
        file.handles = file.handles.saturating_sub(1);
        if file.handles == 0 && !file.named {
            self.sweep();
        }
    }

    /// Returns all entries below a directory and the directory itself, deepest first.
    pub fn below(&self, entry: &DirEntry) -> Vec<DirEntry> {
        let mut found = Vec::new();
        if let Some(ino) = self.at(entry)
            && let Ok(dir) = self.dir(ino)
        {
            for name in dir.names().keys() {
                found.extend(self.below(&DirEntry { dir: ino, name: name.clone() }));
            }
        }
        found.push(entry.clone());
        found
    }

    /// Returns the bytes allocated by files. A file without a name counts while open.
    pub fn used_bytes(&self) -> u64 {
        let files = self.inodes.values().filter_map(|inode| match inode {
            Inode::File(file) if file.named || file.handles > 0 => Some(file.reserved()),
            _ => None,
        });
        files.sum()
    }

    pub fn process_died(&mut self, rng: &mut Rng) {
        for file in self.files_mut() {
            file.process_died(rng);
        }
        self.sweep();
    }

    pub fn power_loss(&mut self, rng: &mut Rng) -> Losses {
        let mut losses = Losses::default();
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::Dir(dir) => dir.power_loss(rng, &mut losses),
                Inode::File(file) => file.handles = 0,
            }
        }
        self.sweep(); // the content of a file without a name is not a loss
        for file in self.files_mut() {
            file.power_loss(rng, &mut losses);
            file.named = true;
        }
        losses
    }

    fn files_mut(&mut self) -> impl Iterator<Item = &mut FileNode> {
        self.inodes.values_mut().filter_map(|inode| match inode {
            Inode::File(file) => Some(file),
            Inode::Dir(_) => None,
        })
    }

    /// Removes inodes without any present or recoverable name, unless open.
    fn sweep(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut to_visit = vec![ROOT];
        while let Some(ino) = to_visit.pop() {
            if let Some(Inode::Dir(dir)) = self.inodes.get(&ino) {
                to_visit.extend(dir.referred().filter(|ino| reached.insert(*ino)));
            }
        }
        self.inodes.retain(|ino, inode| {
            reached.contains(ino) || matches!(inode, Inode::File(file) if file.handles > 0)
        });
    }

    /// Returns all files visible to processes, with their paths, sorted.
    pub fn files(&self) -> Vec<(PathBuf, Ino)> {
        let mut found = Vec::new();
        self.walk(ROOT, Path::new("/"), Directory::names, &mut |path, ino| found.push((path, ino)));
        found
    }

    fn walk(
        &self,
        dir: Ino,
        path: &Path,
        names: fn(&Directory) -> &BTreeMap<String, Ino>,
        visit: &mut impl FnMut(PathBuf, Ino),
    ) {
        let Some(Inode::Dir(dir)) = self.inodes.get(&dir) else { return };
        for (name, ino) in names(dir) {
            let path = path.join(name);
            if self.is_dir(*ino) {
                self.walk(*ino, &path, names, visit);
            } else {
                visit(path, *ino);
            }
        }
    }

    /// Returns a hash of the names and contents on the medium.
    pub fn digest(&self) -> u64 {
        let mut hash = 0;
        self.walk(ROOT, Path::new("/"), Directory::durable, &mut |path, ino| {
            for byte in path.as_os_str().as_encoded_bytes() {
                hash = mix(hash, u64::from(*byte));
            }
            if let Some(Inode::File(file)) = self.inodes.get(&ino) {
                hash = file.durable().hash(hash);
            }
        });
        hash
    }
}
