//! Faults of a node's stored data: deletes the data, corrupts its end, or restores an older copy.

use std::path::Path;
use std::time::Duration;

use rowlock_world::disk::{DiskCopy, HostDisk};
use rowlock_world::executor::Halt;
use rowlock_world::time::HostId;

use super::super::cuts::{Link, between};
use super::super::membership::Data;
use super::super::node_statuses::node_id;
use super::{Birth, End, Injector};
use crate::fault::{Down, Fault};
use crate::history::node::NodeFact;

impl Injector {
    /// Begins a fault of stored data.
    pub(super) fn begin_on_data(&mut self, fault: Fault) -> Result<(), Halt> {
        match fault {
            Fault::Wipe { target, lasts } => {
                for place in self.places(target) {
                    self.forgets(place, Data::Gone);
                    self.power_off(place, Down::For(lasts))?;
                    self.sim.disk(self.targets.nodes[place]).wipe();
                }
            }
            Fault::RotTail { target, lasts } => {
                for place in self.places(target) {
                    self.bring_to_rest(place, lasts);
                }
            }
            Fault::Restore { target, lasts } => {
                for place in self.places(target) {
                    let copy = self.sim.disk(self.targets.nodes[place]).copy();
                    self.later(lasts, End::RestoreCopy(place, copy));
                }
            }
            other => unreachable!("{other} is begun elsewhere"),
        }
        Ok(())
    }

    /// Marks the node at this place as returning with less data than before: the node may refuse to start.
    fn forgets(&mut self, place: usize, left: Data) {
        self.excused.insert(place);
        self.targets.membership.forget(place, left);
        self.targets.record.node(node_id(place), NodeFact::Forgot);
    }

    /// Restores an older disk copy. Never the leader's: the leader knows the entries acknowledged by its
    /// followers, and no node may know about entries that it has forgotten itself.
    pub(super) fn restore_copy(&mut self, place: usize, copy: DiskCopy) -> Result<(), Halt> {
        let host = self.targets.nodes[place];
        if !self.sim.is_up(host) || self.targets.statuses.leader().is_none_or(|leader| leader == place) {
            return Ok(());
        }
        self.forgets(place, Data::Older);
        self.sim.kill(host)?;
        self.sim.disk(host).restore(copy);
        self.start_later(Birth::Node(place), Down::For(Duration::from_millis(1)));
        Ok(())
    }
}

/// Interval between checks for disk writes.
const LOOK: Duration = Duration::from_millis(50);
/// Consecutive checks without a write that mean rest: the record after the last flush is written within this
/// time.
const STILL: u32 = 24;
/// Checks after which a log that never rests is left alone.
const LOOKS_MAX: u32 = 100;

/// A node cut off from all hosts.
pub(super) struct Rest {
    place: usize,
    links: Vec<Link>,
    down: Duration,
    /// Disk operations at the last check.
    done: u64,
    still: u32,
    looks: u32,
}

impl Injector {
    /// Isolates the node. [`Injector::check_rest`] continues.
    pub(super) fn bring_to_rest(&mut self, place: usize, down: Duration) {
        let host = self.targets.nodes[place];
        let others: Vec<HostId> = self
            .targets
            .nodes
            .iter()
            .chain(&self.targets.clients)
            .filter(|other| **other != host)
            .copied()
            .collect();
        let links = between(&[host], &others);
        self.cuts.cut(self.sim.network(), &links);
        let rest = Rest { place, links, down, done: 0, still: 0, looks: 0 };
        self.later(LOOK, End::Rest(rest));
    }

    /// Corrupts the log if it is at rest; otherwise schedules another check.
    pub(super) fn check_rest(&mut self, mut rest: Rest) -> Result<(), Halt> {
        let host = self.targets.nodes[rest.place];
        if !self.sim.is_up(host) || rest.looks >= LOOKS_MAX {
            self.leave(&rest);
            return Ok(());
        }
        let disk = self.sim.disk(host);
        let done = disk.stats().operations();
        // A paused process, or a process that waits for a slow disk, is not at rest.
        let is_still = done == rest.done && !self.sim.is_paused(host) && disk.pace() == 1;
        rest.still = if is_still { rest.still + 1 } else { 0 };
        (rest.done, rest.looks) = (done, rest.looks + 1);
        if rest.still < STILL {
            self.later(LOOK, End::Rest(rest));
            return Ok(());
        }
        self.leave(&rest);
        self.excused.insert(rest.place);
        self.targets.membership.damage(rest.place);
        self.sim.kill(host)?;
        rot(&disk);
        self.start_later(Birth::Node(rest.place), Down::For(rest.down));
        Ok(())
    }

    pub(super) fn leave(&mut self, rest: &Rest) {
        self.cuts.join(self.sim.network(), &rest.links);
    }
}

/// Offset of the first record of a segment, and the layout of a record (`coordinator/storage/wal/src/log/`).
const FIRST_RECORD_AT: usize = 4096;
const HEADER_BYTES: usize = 24;
const ALIGN: usize = 8;
const ENTRY: u8 = 1;
const VOTE: u8 = 2;

struct Found {
    at: usize,
    len: usize,
    kind: u8,
}

/// Flips a bit in the last entry or vote. The node's process must be dead.
pub(super) fn rot(disk: &HostDisk) -> Option<String> {
    let is_segment = |path: &Path| path.extension().is_some_and(|extension| extension == "wal");
    let newest = disk.files().into_iter().map(|(path, _)| path).filter(|path| is_segment(path)).max()?;
    disk.rot_at(|path, bytes| if path == newest { place(bytes) } else { None })
}

/// Returns the middle of the last entry or vote.
fn place(bytes: &[u8]) -> Option<usize> {
    let records = records(bytes);
    let last = records.iter().rfind(|record| matches!(record.kind, ENTRY | VOTE))?;
    Some(last.at + HEADER_BYTES + last.len / 2)
}

/// Returns the records of a segment up to the first break in the chain of checksums.
fn records(bytes: &[u8]) -> Vec<Found> {
    let word = |at: usize| {
        let four = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    };
    let mut records = Vec::new();
    let (mut at, mut before) = (FIRST_RECORD_AT, word(12));
    while let (Some(crc), Some(len), Some(previous), Some(kind)) =
        (word(at), word(at + 4), word(at + 8), bytes.get(at + 20))
    {
        if Some(previous) != before {
            break;
        }
        let len = len as usize;
        records.push(Found { at, len, kind: *kind });
        (at, before) = (at + (HEADER_BYTES + len).next_multiple_of(ALIGN), Some(crc));
    }
    records
}
