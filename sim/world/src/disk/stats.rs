//! Counters of operations and faults of a disk.

use std::fmt;
use std::ops::AddAssign;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    Write,
    SetLen,
    Allocate,
    Sync,
    Create,
    CreateDir,
    Rename,
    Remove,
    SyncDir,
}

impl Op {
    pub const ALL: [Op; 9] = [
        Op::Write,
        Op::SetLen,
        Op::Allocate,
        Op::Sync,
        Op::Create,
        Op::CreateDir,
        Op::Rename,
        Op::Remove,
        Op::SyncDir,
    ];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Unflushed writes that reached the medium.
    pub kept: u64,
    /// Unflushed writes that were lost.
    pub dropped: u64,
    /// Unflushed writes of which some sectors reached the medium.
    pub torn: u64,
    /// Unflushed changes of length that reached the medium.
    pub lengths_kept: u64,
    /// Unflushed changes of length that were lost.
    pub lengths_lost: u64,
    /// Unflushed changes of names that reached the medium.
    pub names_kept: u64,
    /// Unflushed changes of names that were lost.
    pub names_lost: u64,
}

impl Losses {
    pub(super) fn count_length(&mut self, kept: bool) {
        let counter = if kept { &mut self.lengths_kept } else { &mut self.lengths_lost };
        *counter += 1;
    }
}

impl fmt::Display for Losses {
    /// `unflushed writes: 1 kept, 2 dropped, 0 torn; lengths: 0 kept, 0 lost; names: 1 kept, 0 lost`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Losses { kept, dropped, torn, lengths_kept, lengths_lost, names_kept, names_lost } = self;
        write!(f, "unflushed writes: {kept} kept, {dropped} dropped, {torn} torn; ")?;
        write!(f, "lengths: {lengths_kept} kept, {lengths_lost} lost; ")?;
        write!(f, "names: {names_kept} kept, {names_lost} lost")
    }
}

impl AddAssign for Losses {
    fn add_assign(&mut self, other: Losses) {
        self.kept += other.kept;
        self.dropped += other.dropped;
        self.torn += other.torn;
        self.lengths_kept += other.lengths_kept;
        self.lengths_lost += other.lengths_lost;
        self.names_kept += other.names_kept;
        self.names_lost += other.names_lost;
    }
}

/// Counters of a disk since its creation. Counters of several disks can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    operations: [u64; Op::ALL.len()],
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// Flushes, of files or names, that failed by an injected fault.
    pub failed_syncs: u64,
    /// Other changes that failed by an injected fault.
    pub failed_changes: u64,
    pub out_of_space: u64,
    pub rotten_bits: u64,
    pub deaths: u64,
    pub power_losses: u64,
    /// Power losses planned at a certain operation.
    pub cuts: u64,
    pub losses: Losses,
}

impl DiskStats {
    /// Returns how often programs requested the operation.
    pub fn of(&self, op: Op) -> u64 {
        self.operations[op as usize]
    }

    /// Returns how often programs requested any operation.
    pub fn operations(&self) -> u64 {
        self.operations.iter().sum()
    }

    pub(super) fn count(&mut self, op: Op) {
        self.operations[op as usize] += 1;
    }
}

impl AddAssign for DiskStats {
    fn add_assign(&mut self, other: DiskStats) {
        for (sum, more) in self.operations.iter_mut().zip(other.operations) {
            *sum += more;
        }
        self.bytes_written += other.bytes_written;
        self.bytes_read += other.bytes_read;
        self.failed_syncs += other.failed_syncs;
        self.failed_changes += other.failed_changes;
        self.out_of_space += other.out_of_space;
        self.rotten_bits += other.rotten_bits;
        self.deaths += other.deaths;
        self.power_losses += other.power_losses;
        self.cuts += other.cuts;
        self.losses += other.losses;
    }
}
