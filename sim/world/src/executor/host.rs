//! The executor's data about a host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use super::processor::Processor;
use crate::clock::Clock;
use crate::disk::HostDisk;
use crate::rng::Rng;
use crate::time::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// No process runs; the machine may have power or not.
    Down,
    Up,
    /// The process is stopped. Its clocks continue.
    Paused,
}

pub(super) struct Host {
    pub(super) name: String,
    pub(super) life: Life,
    /// Cause of the last life's end.
    pub(super) end: &'static str,
    pub(super) clock: Clock,
    /// Timers by deadline on the host's clock, and serial number.
    pub(super) timers: BTreeMap<(u64, u64), Waker>,
    /// Turns of the host; those of a paused process come later.
    pub(super) processor: Processor,
    pub(super) disk: Arc<HostDisk>,
    pub(super) rng: Rng,
}

impl Host {
    /// Returns how many tasks could have a turn now.
    pub(super) fn ready(&self) -> usize {
        if self.life == Life::Up { self.processor.ready() } else { 0 }
    }

    /// Returns the time of the host's next activity, unless a task is ready now.
    pub(super) fn next_moment(&self) -> Option<Nanos> {
        if self.life != Life::Up {
            return None;
        }
        let timer = || self.timers.first_key_value().map(|((deadline, _), _)| self.clock.when(*deadline));
        self.processor.busy_until().or_else(timer)
    }

    /// Removes the timers due by `now` and appends their wakers to `rung`.
    pub(super) fn due(&mut self, now: Nanos, rung: &mut Vec<Waker>) {
        self.processor.refresh(now);
        if self.life != Life::Up || self.processor.busy_until().is_some() {
            return;
        }
        let local = self.clock.local(now);
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > local {
                return;
            }
            rung.push(entry.remove());
        }
    }
}
