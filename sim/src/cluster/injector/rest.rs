//! Waits until the log of an isolated node is at rest, then corrupts its last entry.

use std::time::Duration;

use rowlock_world::executor::Halt;
use rowlock_world::time::HostId;

use super::super::cuts::{Link, between};
use super::{Birth, End, Injector, tail};
use crate::fault::Down;

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
        tail::rot(&disk);
        self.start_later(Birth::Node(rest.place), Down::For(rest.down));
        Ok(())
    }

    pub(super) fn leave(&mut self, rest: &Rest) {
        self.cuts.join(self.sim.network(), &rest.links);
    }
}
