//! File of reserved disk space, removed on a full disk: the log continues in the freed space while the
//! operator makes room.

use std::io;

use rowlock_env::disk::Dir;

use crate::error::is_for_lack_of_room;

pub(crate) const NAME: &str = "reserve";

/// Handle of the reserve file. All methods block on the disk.
#[derive(Clone, Debug)]
pub struct Reserve {
    dir: Dir,
}

impl Reserve {
    /// Makes the handle for a data folder, with or without the file.
    pub fn of(dir: Dir) -> Reserve {
        Reserve { dir }
    }

    /// Releases the reserve if fewer than `bytes` are free: a start writes small files, and perhaps a
    /// segment.
    pub(crate) fn or_room_for(self, bytes: u64) -> Reserve {
        if self.free_bytes().is_ok_and(|free| free < bytes) {
            self.release();
        }
        self
    }

    /// Returns the free bytes of the file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.dir.free_bytes()
    }

    /// Creates the file with `bytes`, unless the file exists or fewer than `rest` bytes would stay free.
    /// Returns true if the file was created.
    ///
    /// # Errors
    /// The disk refuses, for another reason than lack of space.
    pub fn keep(&self, bytes: u64, rest: u64) -> io::Result<bool> {
        if bytes == 0 || self.dir.exists(NAME) || self.free_bytes()? < bytes.saturating_add(rest) {
            return Ok(false);
        }
        assert!(bytes > 0, "an empty file keeps no room");
        let made = self.dir.create_new(NAME).and_then(|file| file.allocate(bytes));
        match made {
            Ok(()) => Ok(true),
            Err(error) => {
                let removed = self.dir.remove(NAME);
                if is_for_lack_of_room(error.kind()) { removed.map(|()| false) } else { Err(error) }
            }
        }
    }

    /// Removes the file. Returns true if the removal has freed space.
    pub fn release(&self) -> bool {
        // Some file systems free the space only at their next flush.
        self.dir.remove(NAME).and_then(|()| self.dir.sync()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_made_with_enough_space_and_occupies_it() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        let reserve = Reserve::of(dir.clone());
        assert!(!reserve.keep(1 << 20, u64::MAX).expect("looks"), "it must leave more than there is");
        assert!(!reserve.keep(0, 0).expect("looks"), "none is wanted");
        assert!(!reserve.release() && !dir.exists(NAME));
        assert!(reserve.keep(1 << 20, 0).expect("is made"));
        assert_eq!(dir.open_file(NAME).and_then(|file| file.len()).expect("is there"), 1 << 20);
        assert!(!reserve.keep(1 << 20, 0).expect("looks"), "there is one");
        assert!(reserve.release() && !reserve.release());
    }
}
