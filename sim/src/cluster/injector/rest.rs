//! Waits until the log of an isolated node is at rest, and corrupts its last entry.

use std::time::Duration;

use rowlock_world::executor::Halt;
use rowlock_world::time::HostId;

use super::super::cuts::{Link, between};
use super::{Birth, End, Injector, tail};
use crate::fault::Down;

/// How often to check whether anything has been written.
const LOOK: Duration = Duration::from_millis(50);
/// How many checks in a row without a write mean rest: by then the record after the last flush is written.
const STILL: u32 = 24;
/// A log that is not at rest by then is left alone.
const LOOKS_MAX: u32 = 100;

/// A node that is cut off from all others.
pub(super) struct Rest {
    place: usize,
    links: Vec<Link>,
    down: Duration,
    /// Operations of its disk at the last check.
    done: u64,
    still: u32,
    looks: u32,
}

impl Injector {
    /// Cuts the node off; the next steps are in [`Injector::look_at`].
    pub(super) fn bring_to_rest(&mut self, place: usize, down: Duration) {
        let host = self.patients.nodes[place];
        let others: Vec<HostId> = self
            .patients
            .nodes
            .iter()
            .chain(&self.patients.clients)
            .filter(|other| **other != host)
            .copied()
            .collect();
        let links = between(&[host], &others);
        self.cuts.cut(self.sim.network(), &links);
        let rest = Rest { place, links, down, done: 0, still: 0, looks: 0 };
        self.later(LOOK, End::Rest(rest));
    }

    /// Whether its log is at rest.
    pub(super) fn look_at(&mut self, mut rest: Rest) -> Result<(), Halt> {
        let host = self.patients.nodes[rest.place];
        if !self.sim.is_up(host) || rest.looks >= LOOKS_MAX {
            self.leave(&rest);
            return Ok(());
        }
        let disk = self.sim.disk(host);
        let done = disk.stats().operations();
        // A process that stands still, or waits for a slow disk, does not rest.
        let is_still = done == rest.done && !self.sim.is_paused(host) && disk.pace() == 1;
        rest.still = if is_still { rest.still + 1 } else { 0 };
        (rest.done, rest.looks) = (done, rest.looks + 1);
        if rest.still < STILL {
            self.later(LOOK, End::Rest(rest));
            return Ok(());
        }
        self.leave(&rest);
        self.excused.insert(rest.place);
        self.patients.membership.damage(rest.place);
        self.sim.kill(host)?;
        tail::rot(&disk);
        self.start_later(Birth::Node(rest.place), Down::For(rest.down));
        Ok(())
    }

    pub(super) fn leave(&mut self, rest: &Rest) {
        self.cuts.join(self.sim.network(), &rest.links);
    }
}
