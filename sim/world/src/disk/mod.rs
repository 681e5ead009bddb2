//! The disk of a simulated host, in memory, with the failures of real disks on which programs must not rely.
//!
//! - When the power goes, unflushed writes are kept, dropped, or torn at sectors of 512 bytes, each by its
//!   own luck: a later one may be there and an earlier one not. Lengths and names have their own luck.
//! - A file's flush does not cover its name: that is durable after the flush of its directory.
//! - A kill loses nothing: the page cache belongs to the machine.
//! - After a failed flush, its data counts as clean: some of it is on the medium, the process sees all of it,
//!   the next flush succeeds without writing it. A restarted process may see one or the other.
//! - A disk fails, fills up, slows down, gets corrupted.
//!
//! A process sees the disk through [`HostDisk::mount`], for one life. **The disk learns of a kill before the
//! tasks of the host are dropped**: destructors do not run in a killed process, so their operations must
//! fail.
//!
//! The model is stricter than any one file system: it allows what some do (FoundationDB's
//! `AsyncFileNonDurable`, TigerBeetle's `testing/storage.zig`, and Pillai et al., "All File Systems Are Not
//! Created Equal", 2014, are its models). Two things are simpler than in reality: a rename stays within one
//! directory, and each directory has its own journal, of which a first part survives.

mod directory;
mod file;
mod image;
mod mount;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::world::Disk;

pub use self::stats::{DiskStats, Losses, Op};
use crate::rng::Rng;
use mount::Mount;
use state::{CAPACITY_BYTES, Cut, Faults, Life, Power, State};

/// How many other places are tried when the place to corrupt holds no data.
const ROT_TRIES: usize = 8;
/// A disk with less space than this is about to be full.
const SPACE_BYTES: u64 = 1 << 30;

/// The disk of a host. It outlives the host's processes.
///
/// Invariant: nothing is called, and nothing foreign is dropped, while its lock is held.
pub struct HostDisk {
    state: Mutex<State>,
}

/// The content of a disk at a moment.
#[derive(Clone, Debug)]
pub struct DiskCopy(tree::Tree);

impl fmt::Debug for HostDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let (life, power) = (state.life, state.power);
        f.debug_struct("HostDisk").field("life", &life).field("power", &power).finish_non_exhaustive()
    }
}

impl HostDisk {
    /// An empty disk of a host that runs. `rng` decides about everything that is left to luck.
    pub fn new(rng: Rng) -> Arc<HostDisk> {
        Arc::new(HostDisk { state: Mutex::new(State::new(rng)) })
    }

    /// The disk as the process that lives now sees it. Everything that comes from it fails once that one is
    /// dead.
    pub fn mount(self: &Arc<Self>) -> Arc<dyn Disk> {
        let life = self.state.lock().life;
        Arc::new(Mount { host: self.clone(), life })
    }

    /// The process is killed: it loses what it had open and locked; the disk and its cache lose nothing. To
    /// be called before the tasks are dropped. Until [`HostDisk::boot`] nothing works.
    pub fn process_died(&self) {
        let mut state = self.state.lock();
        let planned = state.end_life();
        let State { tree, rng, .. } = &mut *state;
        tree.process_died(rng);
        state.stats.deaths += 1;
        drop(state);
        drop(planned);
    }

    /// The power goes: decides what of the unflushed is left. To be called before the tasks are dropped.
    /// Until [`HostDisk::boot`] nothing works.
    pub fn power_loss(&self) -> Losses {
        let mut state = self.state.lock();
        let planned = state.end_life();
        let State { tree, rng, .. } = &mut *state;
        let losses = tree.power_loss(rng);
        state.stats.power_losses += 1;
        state.stats.losses += losses;
        drop(state);
        drop(planned);
        losses
    }

    /// A process of the host may begin its life. Nothing new if one lives.
    pub fn boot(&self) {
        let mut state = self.state.lock();
        if state.power != Power::On {
            state.life = Life(state.life.0 + 1); // who mounted in between has no part in it
            state.power = Power::On;
        }
    }

    /// The power goes at the `n`-th change from now (1 is the next one): it is not made, or, if it is a
    /// write, it is one more that was not flushed; this and all that follows fails. Then `on_cut` is called,
    /// from within that operation: it should let [`HostDisk::power_loss`] (or [`HostDisk::process_died`]: a
    /// kill at this place) and the end of the host's tasks follow. A later call takes the place of an earlier
    /// one; so does any end of the process.
    pub fn cut_power_at_op(&self, n: u64, on_cut: Box<dyn FnOnce() + Send>) {
        self.cut_power_at(n, |_| true, on_cut);
    }

    /// As [`HostDisk::cut_power_at_op`], where only changes count that `counts` accepts.
    pub fn cut_power_at(&self, n: u64, counts: fn(Op) -> bool, on_cut: Box<dyn FnOnce() + Send>) {
        assert!(n > 0, "the next change is number 1");
        let earlier = self.state.lock().cut.replace(Cut { left: n, counts, on_cut });
        drop(earlier);
    }

    /// The next `count` flushes, of files or directories, fail with EIO.
    ///
    /// A file's flush that fails leaves the medium with any part of the data, and forgets that it was to be
    /// written. A directory's leaves the names to the next flush.
    pub fn fail_syncs(&self, count: u32) {
        self.state.lock().faults.syncs_to_fail = count;
    }

    /// Whether every change, flushes included, fails with EIO from now.
    pub fn fail_changes(&self, fail: bool) {
        self.state.lock().faults.changes_fail = fail;
    }

    /// The disk has space for this many bytes, of which some may be taken.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().faults.capacity = bytes;
    }

    /// Leaves no space but `spare` bytes. What is written into space that a file already has still fits.
    pub fn fill_up(&self, spare: u64) {
        let mut state = self.state.lock();
        state.faults.capacity = state.tree.used_bytes() + spare;
    }

    /// Makes everything take `pace` times as long. The disk does everything at once: who runs the host reads
    /// [`HostDisk::pace`].
    pub fn set_pace(&self, pace: u32) {
        assert!(pace > 0, "a disk does not go back in time");
        self.state.lock().faults.pace = pace;
    }

    /// How many times slower than usual it is.
    pub fn pace(&self) -> u32 {
        self.state.lock().faults.pace
    }

    /// Whether the disk has no fault, its usual speed, and more space than a run fills.
    pub fn is_sound(&self) -> bool {
        self.is_at_most(1)
    }

    /// Whether it works, and each flush takes at most this many times the usual time.
    pub fn is_at_most(&self, pace: u32) -> bool {
        let state = self.state.lock();
        let faults = &state.faults;
        let space = faults.capacity.saturating_sub(state.tree.used_bytes());
        faults.pace <= pace && faults.syncs_to_fail == 0 && !faults.changes_fail && space > SPACE_BYTES
    }

    /// Ends all faults: nothing fails any more, there is space, it is as fast as ever, no cut of power is
    /// planned. What was damaged stays so.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.faults = Faults { capacity: CAPACITY_BYTES, ..Faults::default() };
        let planned = state.cut.take();
        drop(state);
        drop(planned);
    }

    /// Inverts a bit on the medium, in one of the files that `filter` accepts and that have durable content,
    /// and says which one. A process that wrote there since its last flush does not see it, and overwrites it
    /// with its next.
    pub fn rot(&self, filter: impl Fn(&Path) -> bool) -> Option<String> {
        let mut files = self.state.lock().tree.files();
        files.retain(|(path, _)| filter(path)); // without the lock
        let mut state = self.state.lock();
        let State { tree, rng, .. } = &mut *state;
        files.retain(|(_, ino)| tree.file(*ino).is_ok_and(|file| !file.durable().stored().is_empty()));
        if files.is_empty() {
            return None;
        }
        let (path, ino) = &files[rng.below(files.len())];
        let file = tree.file(*ino).ok()?;
        // Bytes that were never written are zero, and are not read.
        let stored = file.durable().stored();
        let mut offset = rng.below(stored.len());
        for _ in 0..ROT_TRIES {
            if stored[offset] != 0 {
                break;
            }
            offset = rng.below(stored.len());
        }
        let bit = u8::try_from(rng.below(8)).expect("below 8");
        file.rot(offset, bit);
        state.stats.rotten_bits += 1;
        Some(format!("bit {bit} of byte {offset} of {}", path.display()))
    }

    /// As [`HostDisk::rot`], in a place of one's choice: `choose` is given each file's path and durable
    /// content, and says which byte. The first file of which it names one is hit.
    pub fn rot_at(&self, choose: impl Fn(&Path, &[u8]) -> Option<usize>) -> Option<String> {
        let mut state = self.state.lock();
        let State { tree, rng, .. } = &mut *state;
        for (path, ino) in tree.files() {
            let Ok(file) = tree.file(ino) else { continue };
            let Some(offset) = choose(&path, file.durable().stored()) else { continue };
            let bit = u8::try_from(rng.below(8)).expect("below 8");
            file.rot(offset, bit);
            state.stats.rotten_bits += 1;
            return Some(format!("bit {bit} of byte {offset} of {}", path.display()));
        }
        None
    }

    /// Everything on it, as a copy of all files at this moment would have it.
    pub fn copy(&self) -> DiskCopy {
        DiskCopy(self.state.lock().tree.clone())
    }

    /// Puts a copy in the place of everything. No process may live.
    pub fn put_back(&self, copy: DiskCopy) {
        let mut state = self.state.lock();
        assert!(state.power != Power::On, "the files of a process that lives are not exchanged");
        state.tree = copy.0;
        let State { tree, rng, .. } = &mut *state;
        tree.process_died(rng);
    }

    /// Removes everything. No process may live.
    pub fn wipe(&self) {
        self.put_back(DiskCopy(tree::Tree::new()));
    }

    /// Returns the counts since the disk was made.
    pub fn stats(&self) -> DiskStats {
        self.state.lock().stats
    }

    /// A hash of the names and contents on the medium. Reads all of them: for the end of a run.
    pub fn image_digest(&self) -> u64 {
        self.state.lock().tree.digest()
    }

    /// All files that a process would see, with their sizes, sorted by path.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut state = self.state.lock();
        let files = state.tree.files();
        files
            .into_iter()
            .map(|(path, ino)| (path, state.tree.file(ino).map_or(0, |file| file.size())))
            .collect()
    }

    /// Lets a process of `life` do something, and calls what has become due by that.
    fn with<T>(&self, life: Life, f: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        let result = state.admit(life).and_then(|()| f(&mut state));
        let due = state.due.take();
        drop(state);
        if let Some(on_cut) = due {
            on_cut();
        }
        result
    }

    /// Lets a process of `life` give something back. Without effect if it is dead: then nothing is left to
    /// give.
    fn close(&self, life: Life, f: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        if state.life == life {
            f(&mut state);
        }
    }
}
