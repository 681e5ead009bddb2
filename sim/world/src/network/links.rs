//! Links between hosts: latency, loss, cuts, and power of the receiving machine.
//!
//! All settings are one-way: `from -> to` and `to -> from` are two links.

use std::time::Duration;

use crate::rng::Rng;
use crate::time::HostId;

/// Distribution of a delay: a range, and occasionally a value from a long tail above the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    pub least: Duration,
    /// Greatest delay outside the tail.
    pub most: Duration,
    /// Delays per thousand from the tail, between `most` and `tail`.
    pub tail_per_mille: u32,
    pub tail: Duration,
}

impl Delay {
    pub const NONE: Delay = Delay::between(Duration::ZERO, Duration::ZERO);
    /// Delay between machines at one site.
    pub const LOCAL: Delay = Delay {
        least: Duration::from_micros(100),
        most: Duration::from_millis(1),
        tail_per_mille: 1,
        tail: Duration::from_millis(50),
    };
    const LOOPBACK: Delay = Delay::between(Duration::from_micros(15), Duration::from_micros(25));

    pub const fn between(least: Duration, most: Duration) -> Delay {
        Delay { least, most, tail_per_mille: 0, tail: most }
    }

    fn draw(&self, rng: &mut Rng) -> Duration {
        if self.tail_per_mille > 0 && rng.below(1_000) < self.tail_per_mille as usize {
            return within(self.most, self.tail, rng);
        }
        within(self.least, self.most, rng)
    }
}

pub(super) fn within(least: Duration, most: Duration, rng: &mut Rng) -> Duration {
    let Some(span) = most.checked_sub(least).filter(|span| !span.is_zero()) else { return least };
    let nanos = usize::try_from(span.as_nanos()).unwrap_or(usize::MAX - 1);
    least + Duration::from_nanos(rng.below(nanos + 1) as u64)
}

#[derive(Clone, Copy, Debug)]
struct Link {
    cut: bool,
    added: Delay,
    lost_per_mille: u32,
    /// The receiver rejects the sender's identity.
    distrusted: bool,
}

const SOUND: Link = Link { cut: false, added: Delay::NONE, lost_per_mille: 0, distrusted: false };

/// All links, and the power of all machines.
#[derive(Debug)]
pub(super) struct Links {
    // By sender, then by receiver.
    table: Vec<Vec<Link>>,
    powered: Vec<bool>,
}

impl Links {
    pub fn new() -> Self {
        Links { table: Vec::new(), powered: Vec::new() }
    }

    /// Adds hosts up to this one, which has power.
    pub fn add(&mut self, host: HostId) {
        let hosts = self.powered.len().max(host.0 + 1);
        self.powered.resize(hosts, false);
        self.powered[host.0] = true;
        self.table.resize(hosts, Vec::new());
        for row in &mut self.table {
            row.resize(hosts, SOUND);
        }
    }

    /// Returns whether segments arriving at `to` now are lost.
    pub fn blocked(&self, from: HostId, to: HostId) -> bool {
        !self.powered[to.0] || self.is_cut(from, to)
    }

    pub fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.table[from.0][to.0].cut
    }

    /// Cuts or joins a link. Returns whether this changed the link. A machine cannot be cut from itself.
    pub fn set_cut(&mut self, from: HostId, to: HostId, cut: bool) -> bool {
        let link = &mut self.table[from.0][to.0];
        let changes = from != to && link.cut != cut;
        if changes {
            link.cut = cut;
        }
        changes
    }

    pub fn cuts(&self) -> Vec<(HostId, HostId)> {
        let hosts = 0..self.table.len();
        let pairs = hosts.clone().flat_map(|from| hosts.clone().map(move |to| (HostId(from), HostId(to))));
        pairs.filter(|(from, to)| self.is_cut(*from, *to)).collect()
    }

    pub fn set_power(&mut self, host: HostId, on: bool) {
        self.powered[host.0] = on;
    }

    pub fn set_added(&mut self, from: HostId, to: HostId, delay: Delay) {
        self.table[from.0][to.0].added = delay;
    }

    pub fn set_loss(&mut self, from: HostId, to: HostId, per_mille: u32) {
        assert!(per_mille <= 1_000, "of a thousand segments, not more than a thousand are lost");
        self.table[from.0][to.0].lost_per_mille = per_mille;
    }

    pub fn set_distrusted(&mut self, from: HostId, to: HostId, distrusted: bool) {
        self.table[from.0][to.0].distrusted = distrusted;
    }

    /// Returns whether a handshake between the two fails, whichever begins: each side checks the other.
    pub fn distrusted(&self, a: HostId, b: HostId) -> bool {
        a != b && (self.table[a.0][b.0].distrusted || self.table[b.0][a.0].distrusted)
    }

    /// Returns whether the link has no fault.
    pub fn is_sound(&self, from: HostId, to: HostId) -> bool {
        let link = &self.table[from.0][to.0];
        let is_as_fast = link.added == Delay::NONE && link.lost_per_mille == 0;
        !link.cut && is_as_fast && !self.distrusted(from, to)
    }

    /// Ends added latency, loss and distrust on all links; cuts stay.
    pub fn unclog(&mut self) {
        for link in self.table.iter_mut().flatten() {
            *link = Link { cut: link.cut, ..SOUND };
        }
    }

    pub fn latency(&self, from: HostId, to: HostId, rng: &mut Rng) -> Duration {
        if from == to {
            return Delay::LOOPBACK.draw(rng);
        }
        Delay::LOCAL.draw(rng) + self.table[from.0][to.0].added.draw(rng)
    }

    /// Draws whether a segment sent now gets lost.
    pub fn loses(&self, from: HostId, to: HostId, rng: &mut Rng) -> bool {
        let per_mille = self.table[from.0][to.0].lost_per_mille as usize;
        from != to && per_mille > 0 && rng.below(1_000) < per_mille
    }
}
