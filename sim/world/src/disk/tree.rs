//! Directories and files, found by their paths. It knows no faults and does what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::directory::Directory;
use super::file::FileNode;
use super::image::mix;
use super::stats::Losses;
use crate::rng::Rng;

/// A file or directory, whatever it is called.
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

/// A name in a directory. What it stands for may be there or not.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub dir: Ino,
    pub name: String,
}

impl Tree {
    /// One empty directory: the root.
    pub fn new() -> Self {
        Tree { inodes: BTreeMap::from([(ROOT, Inode::Dir(Directory::default()))]), made: 1 }
    }

    /// Looks up a path.
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

    /// The place that a path names; its directory must be there.
    pub fn place(&self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.find(path.parent().unwrap_or(Path::new("/")))?;
        self.dir(dir)?;
        Ok(Place { dir, name: name.to_owned() })
    }

    /// Looks up a place.
    pub fn at(&self, place: &Place) -> Option<Ino> {
        self.dir(place.dir).ok().and_then(|dir| dir.get(&place.name))
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
                "Invariant: a place is in a directory, and that is only removed when nothing refers to it"
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

    fn make(&mut self, place: &Place, inode: Inode) -> Ino {
        assert!(self.at(place).is_none(), "the place is free");
        let ino = Ino(self.made);
        self.made += 1;
        self.inodes.insert(ino, inode);
        self.dir_mut(place.dir).link(&place.name, ino);
        ino
    }

    /// Makes an empty file at a free place.
    pub fn make_file(&mut self, place: &Place) -> Ino {
        self.make(place, Inode::File(FileNode::new()))
    }

    /// Makes an empty directory at a free place.
    pub fn make_dir(&mut self, place: &Place) -> Ino {
        self.make(place, Inode::Dir(Directory::default()))
    }

    /// Renames within a directory. The caller has seen that both are files, or that nothing is called `to`.
    pub fn rename(&mut self, from: &Place, to: &str) {
        let target = self.dir_mut(from.dir).get(to);
        self.lose_name(target);
        self.dir_mut(from.dir).rename(&from.name, to);
    }

    /// Takes a name away from what has it.
    pub fn unlink(&mut self, place: &Place) {
        let target = self.at(place);
        self.lose_name(target);
        self.dir_mut(place.dir).unlink(&place.name);
    }

    fn lose_name(&mut self, ino: Option<Ino>) {
        if let Some(Inode::File(file)) = ino.and_then(|ino| self.inodes.get_mut(&ino)) {
            file.named = false;
        }
    }

    /// Brings the names in a directory to the medium.
    pub fn sync_dir(&mut self, ino: Ino) {
        if self.dir_mut(ino).sync() {
            self.sweep();
        }
    }

    /// A handle of a file is gone.
    pub fn close(&mut self, ino: Ino) {
        let Some(Inode::File(file)) = self.inodes.get_mut(&ino) else { return };
        file.handles = file.handles.saturating_sub(1);
        if file.handles == 0 && !file.named {
            self.sweep();
        }
    }

    /// Everything below a directory and itself, what is deepest first.
    pub fn below(&self, place: &Place) -> Vec<Place> {
        let mut found = Vec::new();
        if let Some(ino) = self.at(place)
            && let Ok(dir) = self.dir(ino)
        {
            for name in dir.names().keys() {
                found.extend(self.below(&Place { dir: ino, name: name.clone() }));
            }
        }
        found.push(place.clone());
        found
    }

    /// Bytes that files take up. Those without a name do as long as they are open.
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

    /// The cache is gone.
    pub fn power_loss(&mut self, rng: &mut Rng) -> Losses {
        let mut losses = Losses::default();
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::Dir(dir) => dir.power_loss(rng, &mut losses),
                Inode::File(file) => file.handles = 0,
            }
        }
        self.sweep(); // a file without a name has lost nothing
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

    /// Forgets what has no name, will not have one again whatever happens, and is not open.
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

    /// All files that processes see, with their paths, sorted.
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

    /// A hash of the names and contents on the medium.
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
