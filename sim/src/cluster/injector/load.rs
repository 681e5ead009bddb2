//! Faults of overload: floods and slow processors.

use rowlock_world::time::HostId;

use super::super::flood;
use super::{End, Injector};
use crate::fault::Fault;

/// Lower bound of a processor's speed, in percent of the usual speed.
const SLOWEST: u32 = 10;

impl Injector {
    pub(super) fn begin_load(&mut self, fault: Fault) {
        match fault {
            Fault::Flood { target, torrent, connections, lasts } => {
                let is_free = |host: &&HostId| !self.sim.is_up(**host);
                // More floods at a time than there are hosts for add nothing.
                let Some(host) = self.targets.flooders.iter().find(is_free).copied() else { return };
                self.sim.boot(host);
                for place in self.places(target) {
                    self.sim.spawn(host, "flood", flood::pour(torrent, place, connections));
                }
                self.later(lasts, End::Ebb(host));
            }
            Fault::SlowProcessor { target, times, lasts } => {
                for host in self.hosts(&[target]) {
                    let usual = *self.speeds.entry(host).or_insert_with(|| self.sim.speed(host));
                    self.sim.set_speed(host, (usual / times.max(1)).max(SLOWEST));
                    self.later(lasts, End::FullSpeed(host));
                }
            }
            other => unreachable!("{other} is no fault of load"),
        }
    }

    /// Restores the processor's original speed.
    pub(super) fn speed_up(&self, host: HostId) {
        if let Some(usual) = self.speeds.get(&host) {
            self.sim.set_speed(host, *usual);
        }
    }
}
