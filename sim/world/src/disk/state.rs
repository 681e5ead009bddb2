//! State of a disk, behind the lock: power, content, faults.
//!
//! Every change begins with [`State::begin`], which counts the change, injects a failure, or cuts the power.

use std::collections::BTreeSet;
use std::io;

use super::file::BLOCK_BYTES;
use super::stats::{DiskStats, Op};
use super::tree::{Ino, Tree};
use crate::rng::Rng;

/// Callback of a planned power cut.
pub(super) type OnCut = Box<dyn FnOnce() + Send>;

/// Default space of a disk.
pub(super) const CAPACITY_BYTES: u64 = 1 << 40;

/// Number of a life of a host's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    On,
    /// The power failed at an operation. The losses are not decided yet.
    Cut,
    Off,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Number of flushes that still fail.
    pub syncs_to_fail: u32,
    pub changes_fail: bool,
    pub capacity: u64,
    /// Factor by which the disk is slower than usual.
    pub pace: u32,
}

impl Default for Faults {
    fn default() -> Self {
        Faults { syncs_to_fail: 0, changes_fail: false, capacity: CAPACITY_BYTES, pace: 1 }
    }
}

/// Planned power cut at an operation.
pub(super) struct Cut {
    pub left: u64,
    pub counts: fn(Op) -> bool,
    pub on_cut: OnCut,
}

pub(super) struct State {
    pub rng: Rng,
    pub tree: Tree,
    pub life: Life,
    pub power: Power,
    /// Files locked by the present process.
    pub locks: BTreeSet<Ino>,
    pub faults: Faults,
    pub stats: DiskStats,
    pub cut: Option<Cut>,
    /// Callback to run after the lock is released.
    pub due: Option<OnCut>,
}

impl State {
    pub fn new(rng: Rng) -> Self {
        State {
            rng,
            tree: Tree::new(),
            life: Life(0),
            power: Power::On,
            locks: BTreeSet::new(),
            faults: Faults::default(),
            stats: DiskStats::default(),
            cut: None,
            due: None,
        }
    }

    /// Rejects operations of dead processes.
    pub fn admit(&self, life: Life) -> io::Result<()> {
        if life != self.life {
            return Err(io::Error::other("the process that opened this is dead"));
        }
        match self.power {
            Power::On => Ok(()),
            Power::Cut | Power::Off => Err(the_power_is_gone()),
        }
    }

    /// Starts a change. The caller must not make the change after an error.
    pub fn begin(&mut self, op: Op) -> io::Result<()> {
        self.stats.count(op);
        if let Some(cut) = self.cut.as_mut().filter(|cut| (cut.counts)(op)) {
            cut.left -= 1;
            if cut.left == 0 {
                self.due = self.cut.take().map(|cut| cut.on_cut);
                self.power = Power::Cut;
                self.stats.cuts += 1;
                return Err(the_power_is_gone());
            }
        }
        let is_sync = matches!(op, Op::Sync | Op::SyncDir);
        if is_sync && self.faults.syncs_to_fail > 0 {
            self.faults.syncs_to_fail -= 1;
            self.stats.failed_syncs += 1;
            return Err(input_output_error());
        }
        if self.faults.changes_fail {
            let counter = if is_sync { &mut self.stats.failed_syncs } else { &mut self.stats.failed_changes };
            *counter += 1;
            return Err(input_output_error());
        }
        Ok(())
    }

    /// Writes `bytes`, or the part that fits.
    pub fn write(&mut self, ino: Ino, bytes: &[u8], at: u64) -> io::Result<()> {
        let begun = self.begin(Op::Write);
        if begun.is_err() && self.power == Power::On {
            return begun;
        }
        // A write at a power cut counts as unflushed: the power loss decides about the write like about all
        // others.
        let fits = self.fits(ino, at, bytes.len() as u64)?;
        let file = self.tree.file(ino)?;
        file.write(&bytes[..fits], at);
        self.stats.bytes_written += fits as u64;
        begun?;
        if fits < bytes.len() { Err(self.out_of_space()) } else { Ok(()) }
    }

    /// Returns how many of `len` bytes at `at` fit.
    fn fits(&mut self, ino: Ino, at: u64, len: u64) -> io::Result<usize> {
        let missing = self.tree.file(ino)?.missing_for(at + len);
        let free = if missing > 0 { self.free_bytes() } else { 0 };
        let fits = if missing <= free {
            len
        } else {
            let space = self.tree.file(ino)?.reserved() + free / BLOCK_BYTES * BLOCK_BYTES;
            space.saturating_sub(at).min(len)
        };
        Ok(usize::try_from(fits).expect("not longer than a slice"))
    }

    pub fn allocate(&mut self, ino: Ino, len: u64) -> io::Result<()> {
        self.begin(Op::Allocate)?;
        if self.tree.file(ino)?.missing_for(len) > self.free_bytes() {
            return Err(self.out_of_space());
        }
        self.tree.file(ino)?.allocate(len);
        Ok(())
    }

    pub fn sync(&mut self, ino: Ino) -> io::Result<()> {
        let begun = self.begin(Op::Sync);
        if begun.is_err() && self.power == Power::On {
            let State { tree, rng, .. } = self;
            tree.file(ino)?.fail_sync(rng);
        }
        begun?;
        self.tree.file(ino)?.sync();
        Ok(())
    }

    pub fn free_bytes(&self) -> u64 {
        self.faults.capacity.saturating_sub(self.tree.used_bytes())
    }

    fn out_of_space(&mut self) -> io::Error {
        self.stats.out_of_space += 1;
        io::Error::from_raw_os_error(28) // ENOSPC
    }

    /// Ends the present life: open files and locks are released.
    pub fn end_life(&mut self) -> (Option<Cut>, Option<OnCut>) {
        self.life.0 += 1;
        self.power = Power::Off;
        self.locks.clear();
        (self.cut.take(), self.due.take())
    }
}

fn the_power_is_gone() -> io::Error {
    io::Error::other("the power is gone")
}

fn input_output_error() -> io::Error {
    io::Error::from_raw_os_error(5) // EIO
}
