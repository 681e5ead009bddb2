//! Disk of a simulated host, in memory, with the failures of real disks that programs must tolerate.
//!
//! - A power loss keeps, drops, or tears (at sectors of 512 bytes) each unflushed write independently: a
//!   later write may survive an earlier one. Lengths and names are independent, too.
//! - A file's flush does not cover its name: the name is durable after the flush of its directory.
//! - A kill loses nothing: the page cache belongs to the machine.
//! - After a failed flush, the file's data counts as clean: some data is on the medium, the process sees all
//!   data, and the next flush succeeds without writing the data. A restarted process may see either content.
//! - A disk fails, fills up, slows down, gets corrupted.
//!
//! A process sees the disk through [`HostDisk::mount`], for one life. **The executor reports a kill to the
//! disk before it drops the tasks of the host**: a killed process runs no destructors, so their operations
//! must fail.
//!
//! The model is stricter than any one file system, and allows the behavior of several (based on
//! FoundationDB's `AsyncFileNonDurable`, TigerBeetle's `testing/storage.zig`, and Pillai et al., "All File
//! Systems Are Not Created Equal", 2014). Two aspects are simpler than in reality: a rename stays within one
//! directory, and each directory has its own journal, of which a prefix survives.

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

/// Number of retries when the random offset of a corruption holds no data.
const ROT_TRIES: usize = 8;
/// Free space below which a disk counts as almost full.
const SPACE_BYTES: u64 = 1 << 30;

/// Disk of a host. Outlives the host's processes.
///
/// Invariant: no callback runs, and no foreign value is dropped, under the disk's lock.
pub struct HostDisk {
    state: Mutex<State>,
}

/// Content of a disk at one moment.
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
    /// Creates an empty disk of a running host. `rng` makes all random decisions.
    pub fn new(rng: Rng) -> Arc<HostDisk> {
        Arc::new(HostDisk { state: Mutex::new(State::new(rng)) })
    }

    /// Returns the disk as seen by the present process. All operations through the result fail after the
    /// death of that process.
    pub fn mount(self: &Arc<Self>) -> Arc<dyn Disk> {
        let life = self.state.lock().life;
        Arc::new(Mount { host: self.clone(), life })
    }

    /// Kills the process: open files and locks are released; the disk and its cache lose nothing. Call this
    /// before dropping the tasks. All operations fail until [`HostDisk::boot`].
    pub fn process_died(&self) {
        let mut state = self.state.lock();
        let planned = state.end_life();
        let State { tree, rng, .. } = &mut *state;
        tree.process_died(rng);
        state.stats.deaths += 1;
        drop(state);
        drop(planned);
    }

    /// Cuts the power: decides which unflushed changes survive. Call this before dropping the tasks. All
    /// operations fail until [`HostDisk::boot`].
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

    /// Starts a new life of the host's process. Without effect while a process lives.
    pub fn boot(&self) {
        let mut state = self.state.lock();
        if state.power != Power::On {
            state.life = Life(state.life.0 + 1); // a mount from the time in between stays dead
            state.power = Power::On;
        }
    }

    /// Cuts the power at the `n`-th change from now (1 is the next one). The change is not made, or, for a
    /// write, counts as one more unflushed write; this and all later operations fail. Then `on_cut` runs,
    /// from within that operation, and should trigger [`HostDisk::power_loss`] (or
    /// [`HostDisk::process_died`]: a kill at this point) and the end of the host's tasks. A later call
    /// replaces an earlier one; so does any end of the process.
    pub fn cut_power_at_op(&self, n: u64, on_cut: Box<dyn FnOnce() + Send>) {
        self.cut_power_at(n, |_| true, on_cut);
    }

    /// Cuts the power like [`HostDisk::cut_power_at_op`], counting only the changes that `counts` accepts.
    pub fn cut_power_at(&self, n: u64, counts: fn(Op) -> bool, on_cut: Box<dyn FnOnce() + Send>) {
        assert!(n > 0, "the next change is number 1");
        let earlier = self.state.lock().cut.replace(Cut { left: n, counts, on_cut });
        drop(earlier);
    }

    /// Makes the next `count` flushes, of files or directories, fail with EIO.
    ///
    /// A failed flush of a file leaves any part of the data on the medium, and marks the rest as clean. A
    /// failed flush of a directory leaves the names to the next flush.
    pub fn fail_syncs(&self, count: u32) {
        self.state.lock().faults.syncs_to_fail = count;
    }

    /// Makes every change, flushes included, fail with EIO from now, or ends this fault.
    pub fn fail_changes(&self, fail: bool) {
        self.state.lock().faults.changes_fail = fail;
    }

    /// Sets the space of the disk in bytes, some of which may be in use.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().faults.capacity = bytes;
    }

    /// Fills the disk except for `spare` bytes. Writes into allocated space still succeed.
    pub fn fill_up(&self, spare: u64) {
        let mut state = self.state.lock();
        state.faults.capacity = state.tree.used_bytes() + spare;
    }

    /// Makes all operations `pace` times slower. The disk itself works instantly: the executor reads
    /// [`HostDisk::pace`].
    pub fn set_pace(&self, pace: u32) {
        assert!(pace > 0, "a disk does not go back in time");
        self.state.lock().faults.pace = pace;
    }

    /// Returns the factor by which the disk is slower than usual.
    pub fn pace(&self) -> u32 {
        self.state.lock().faults.pace
    }

    /// Returns whether the disk has no fault, its usual speed, and more space than a run fills.
    pub fn is_sound(&self) -> bool {
        self.is_at_most(1)
    }

    /// Returns whether the disk works, and each flush takes at most `pace` times the usual time.
    pub fn is_at_most(&self, pace: u32) -> bool {
        let state = self.state.lock();
        let faults = &state.faults;
        let space = faults.capacity.saturating_sub(state.tree.used_bytes());
        faults.pace <= pace && faults.syncs_to_fail == 0 && !faults.changes_fail && space > SPACE_BYTES
    }

    /// Ends all faults and planned power cuts: all operations succeed, with free space and the usual speed.
    /// Damaged data stays damaged.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.faults = Faults { capacity: CAPACITY_BYTES, ..Faults::default() };
        let planned = state.cut.take();
        drop(state);
        drop(planned);
    }

    /// Inverts a bit on the medium, in one of the files with durable content that `filter` accepts. Returns a
    /// description of the damage. A process that wrote there since its last flush does not see the damage,
    /// and overwrites it with its next flush.
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

    /// Inverts a bit at a chosen offset: `choose` gets each file's path and durable content. The first file
    /// with an offset is damaged.
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

    /// Returns the content of a file as a process sees it; `None` if there is no such file.
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        let (_, ino) = state.tree.files().into_iter().find(|(other, _)| other == path)?;
        let file = state.tree.file(ino).ok()?;
        let mut bytes = vec![0; usize::try_from(file.size()).ok()?];
        file.read(&mut bytes, 0);
        Some(bytes)
    }

    /// Returns a copy of all files at this moment.
    pub fn copy(&self) -> DiskCopy {
        DiskCopy(self.state.lock().tree.clone())
    }

    /// Replaces the whole content by a copy. No process may live.
    pub fn restore(&self, copy: DiskCopy) {
        let mut state = self.state.lock();
        assert!(state.power != Power::On, "the files of a process that lives are not exchanged");
        state.tree = copy.0;
        let State { tree, rng, .. } = &mut *state;
        tree.process_died(rng);
    }

    /// Removes all files. No process may live.
    pub fn wipe(&self) {
        self.restore(DiskCopy(tree::Tree::new()));
    }

    pub fn stats(&self) -> DiskStats {
        self.state.lock().stats
    }

    /// Returns a hash of the names and contents on the medium. Reads all files: for the end of a run.
    pub fn image_digest(&self) -> u64 {
        self.state.lock().tree.digest()
    }

    /// Returns all files visible to a process, with their sizes, sorted by path.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut state = self.state.lock();
        let files = state.tree.files();
        files
            .into_iter()
            .map(|(path, ino)| (path, state.tree.file(ino).map_or(0, |file| file.size())))
            .collect()
    }

    /// Runs an operation of a process of `life`, and then a callback that became due.
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

    /// Releases a resource of a process of `life`. Without effect after the death of the process, which
    /// released everything.
    fn close(&self, life: Life, f: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        if state.life == life {
            f(&mut state);
        }
    }
}
