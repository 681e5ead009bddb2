//! State shared by all connections: the links, the network's randomness, its counters and its part of the
//! record.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Labeler;
use super::conn::Side;
use super::effects::Effects;
use super::links::{Links, within};
use super::stats::NetworkStats;
use crate::rng::Rng;
use crate::time::{HostId, Nanos};
use crate::trace::{MessageId, What};

/// Shortest and longest time of TCP's retransmission (Linux's 200 ms; RFC 6298 doubles the time after each
/// loss, and two seconds keep a test short).
const RESEND_AFTER: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

// Tags of the numbers in the fingerprint.
pub(super) const SENT: u64 = 1;
pub(super) const ARRIVED: u64 = 2;
pub(super) const BROKE: u64 = 3;
pub(super) const CONNECTED: u64 = 4;

pub(super) struct Wire {
    pub links: Links,
    pub rng: Rng,
    pub stats: NetworkStats,
    pub labeler: Option<Labeler>,
    /// Most bytes of one direction in flight or unread.
    pub window: usize,
    /// Windows of single hosts, for both directions.
    pub windows: BTreeMap<HostId, usize>,
    /// Calls that are due after this many more messages of a host.
    pub planned: BTreeMap<HostId, (u64, Call)>,
    /// Calls to run after the lock is released.
    pub due_calls: Vec<Call>,
    messages: u64,
}

pub(super) type Call = Box<dyn FnOnce() + Send>;

impl Wire {
    pub fn new(rng: Rng) -> Self {
        let (links, stats) = (Links::new(), NetworkStats::default());
        let (planned, due_calls) = (BTreeMap::new(), Vec::new());
        let (window, windows) = (256 * 1024, BTreeMap::new());
        Wire { links, rng, stats, labeler: None, window, windows, planned, due_calls, messages: 0 }
    }

    /// Returns whether the handshake of a connection between the two fails.
    pub fn fails_handshake(&mut self, (a, b): (HostId, HostId)) -> bool {
        let fails = self.links.distrusted(a, b);
        self.stats.distrusted += u64::from(fails);
        fails
    }

    /// Returns when a segment that leaves now arrives, and whether the segment was lost once.
    pub fn due(&mut self, from: HostId, to: HostId, now: Nanos) -> (Nanos, bool) {
        let due = now + self.links.latency(from, to, &mut self.rng);
        if !self.links.loses(from, to, &mut self.rng) {
            return (due, false);
        }
        self.stats.lost_on_the_way += 1;
        (due + within(RESEND_AFTER.0, RESEND_AFTER.1, &mut self.rng), true)
    }

    /// Returns the most bytes in flight or unread between these hosts.
    pub fn window(&self, (a, b): (HostId, HostId)) -> usize {
        [a, b].iter().filter_map(|host| self.windows.get(host).copied()).max().unwrap_or(self.window)
    }

    /// Returns the time from the repair of a link to TCP's next retry, after a failure of `stuck`: the pauses
    /// between TCP's retries are about as long as the failure so far.
    pub fn resend_delay(&mut self, stuck: Duration) -> Duration {
        within(Duration::ZERO, stuck.clamp(RESEND_AFTER.0, RESEND_AFTER.1), &mut self.rng)
    }

    /// Counts and records a sent piece of data; returns its number.
    pub fn sent(&mut self, hop: &Hop, bytes: &[u8], label: String, fx: &Effects<'_>) -> u64 {
        self.stats.segments += 1;
        self.stats.bytes += bytes.len() as u64;
        self.messages += 1;
        self.count_for(hop.from);
        let id = self.messages;
        fx.trace.print(&[SENT, fx.now.0, hop.serial, hop.way as u64, bytes.len() as u64]);
        fx.trace.record(fx.now, || What::Sent {
            message: MessageId(id),
            from: hop.from,
            to: hop.to,
            bytes: bytes.len(),
            label,
        });
        id
    }

    fn count_for(&mut self, host: HostId) {
        if let Some((left, _)) = self.planned.get_mut(&host) {
            *left -= 1;
            if *left == 0 {
                self.due_calls.extend(self.planned.remove(&host).map(|(_, call)| call));
            }
        }
    }

    /// Returns the label of a write.
    pub fn label(&self, hop: &Hop, bytes: &[u8], fx: &Effects<'_>) -> String {
        let labeler = self.labeler.filter(|_| fx.trace.is_kept());
        labeler.and_then(|labeler| labeler(hop.port, hop.way == Side::Client, bytes)).unwrap_or_default()
    }
}

/// One direction of one connection, for the record.
pub(super) struct Hop {
    pub serial: u64,
    pub way: Side,
    pub from: HostId,
    pub to: HostId,
    pub port: u16,
}
