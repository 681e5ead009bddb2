//! The executor's data about a host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use super::processor::Processor;
use crate::clock::Clock;
use crate::disk::HostDisk;
use crate::rng::Rng;
use crate::time::Nanos;

/// Whether a host's process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// There is no process; the machine may have power or not.
    Down,
    Up,
    /// It stands still. Its clocks go on.
    Paused,
}

pub(super) struct Host {
    pub(super) name: String,
    pub(super) life: Life,
    /// How its last life ended.
    pub(super) end: &'static str,
    pub(super) clock: Clock,
    /// By deadline on the host's clock, and serial number.
    pub(super) timers: BTreeMap<(u64, u64), Waker>,
    /// Its turns; those of a process that stands still come later.
    pub(super) processor: Processor,
    pub(super) disk: Arc<HostDisk>,
    pub(super) rng: Rng,
}

impl Host {
    /// How many of its tasks could have a turn now.
    pub(super) fn ready(&self) -> usize {
        if self.life == Life::Up { self.processor.ready() } else { 0 }
    }

    /// When it has something to do next, if that is not now.
    pub(super) fn next_moment(&self) -> Option<Nanos> {
        if self.life != Life::Up {
            return None;
        }
        let timer = || self.timers.first_key_value().map(|((deadline, _), _)| self.clock.when(*deadline));
        self.processor.busy_until().or_else(timer)
    }

    /// Takes out what rings by `now`.
    pub(super) fn due(&mut self, now: Nanos, rung: &mut Vec<Waker>) {
        self.processor.look(now);
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
