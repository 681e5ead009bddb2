//! A file that takes up room on the disk for as long as there is plenty, and is removed when there is none:
//! the log goes on in its place while space is being freed.

use std::io;

use rowlock_env::disk::Dir;

use crate::error::is_for_lack_of_room;

/// Its name in the data folder.
pub(crate) const NAME: &str = "reserve";

/// The file. Everything here blocks.
#[derive(Clone, Debug)]
pub struct Reserve {
    dir: Dir,
}

impl Reserve {
    /// In this data folder. It may not be there.
    pub fn of(dir: Dir) -> Reserve {
        Reserve { dir }
    }

    /// Given up if so much is not free beside it: a start writes small files, and perhaps a segment.
    pub(crate) fn or_room_for(self, bytes: u64) -> Reserve {
        if self.free_bytes().is_ok_and(|free| free < bytes) {
            self.give_up();
        }
        self
    }

    /// Bytes that may still be written beside it.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.dir.free_bytes()
    }

    /// Makes the file with `bytes`, unless there is one already, where at least `rest` stay free beside it.
    /// Whether it was made now.
    ///
    /// # Errors
    /// The disk refuses, but for lack of room.
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

    /// Removes it. Whether that has made room.
    pub fn give_up(&self) -> bool {
        // The file system may give the room back with its next flush only.
        self.dir.remove(NAME).and_then(|()| self.dir.sync()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_where_there_is_plenty_and_takes_up_room() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = Dir::open(temp.path()).expect("opens");
        let reserve = Reserve::of(dir.clone());
        assert!(!reserve.keep(1 << 20, u64::MAX).expect("looks"), "it must leave more than there is");
        assert!(!reserve.keep(0, 0).expect("looks"), "none is wanted");
        assert!(!reserve.give_up() && !dir.exists(NAME));
        assert!(reserve.keep(1 << 20, 0).expect("is made"));
        assert_eq!(dir.open_file(NAME).and_then(|file| file.len()).expect("is there"), 1 << 20);
        assert!(!reserve.keep(1 << 20, 0).expect("looks"), "there is one");
        assert!(reserve.give_up() && !reserve.give_up());
    }
}
