//! Accounting of work proportional to input.
//!
//! A *turn* is a single poll of a task. Code with a cost proportional to foreign input (received bytes,
//! decoded frames, validated and applied commands, encoded replies and events, handshakes, hashes, reports)
//! calls [`spend`]. The sum of a turn has three uses: loops end their turn at [`TURN_MAX`] ([`turn_is_over`],
//! [`end_turn_if_over`]), so that no client blocks the other tasks of a thread; a node reports its load by
//! [`total`]; and a simulated world advances its hosts' time by the sum.
//!
//! Each thread has its own counts. A call costs an addition.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::choice::{self, Choice};
use crate::mutant::{self, Mutant};
use crate::{task, world};

/// Accounted work after which a loop over input ends its turn.
pub const TURN_MAX: Duration = Duration::from_millis(1);
const TURN_MAX_NS: u64 = 1_000_000;

/// Kinds of work, each with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// System calls on sockets, including accepted connections.
    SocketCall,
    /// Received bytes, including decryption.
    ReceivedByte,
    /// Sent bytes, including encryption.
    SentByte,
    /// Decoded frames and dispatched requests.
    Frame,
    /// Reads from the local state, without the bytes of their replies.
    Read,
    /// Commands validated by the leader or submitted to the leader.
    Command,
    /// Steps of applied commands (`state::cost`).
    Step,
    /// Events and notices for a connection or a stream.
    Event,
    /// HTTP requests, without the bytes of their replies.
    HttpRequest,
    /// Encoded bytes of JSON and of other HTTP replies.
    EncodedByte,
    Handshake,
    /// Checks of passwords and digests.
    Hash,
    /// Rows of reports: locks, sessions, visited znodes.
    Row,
    /// Bytes of entries and snapshots: encoded, copied or checked.
    LogByte,
}

impl Work {
    /// Returns the cost of a unit in picoseconds: instructions (`just instructions`) on a processor of 3 GHz
    /// at two instructions per cycle, and traces for system calls.
    const fn picoseconds(self) -> u64 {
        match self {
            Work::SocketCall => 3_000_000,
            Work::ReceivedByte | Work::SentByte => 250,
            Work::Frame => 300_000,
            Work::Read => 700_000,
            Work::Command => 1_500_000,
            Work::Step => 20_000,
            Work::Event => 600_000,
            Work::HttpRequest => 20_000_000,
            Work::EncodedByte => 2_000,
            Work::Handshake => 400_000_000,
            Work::Hash => 2_000_000,
            Work::Row => 500_000,
            Work::LogByte => 500,
        }
    }

    pub const fn cost(self, units: u64) -> Duration {
        Duration::from_nanos(units.saturating_mul(self.picoseconds()) / 1_000)
    }
}

thread_local! {
    /// Picoseconds of this thread's running turn.
    static SPENT: Cell<u64> = const { Cell::new(0) };
    /// Bound of the running turn, in picoseconds.
    static MAX: Cell<u64> = const { Cell::new(TURN_MAX_NS * 1_000) };
}

thread_local! {
    /// Picoseconds of this thread's finished turns.
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// Accounted work of this process, in steps of [`STEP_MICROS`]: threads rarely write to the shared counter.
static TOTAL_STEPS: AtomicU64 = AtomicU64::new(0);
const STEP_MICROS: u64 = 100;
const STEP: u64 = STEP_MICROS * 1_000_000;

/// Adds units of work to the running turn.
#[inline]
pub fn spend(work: Work, units: u64) {
    SPENT.with(|spent| spent.set(spent.get().saturating_add(units.saturating_mul(work.picoseconds()))));
}

/// Returns the accounted work of the running turn.
pub fn spent() -> Duration {
    Duration::from_nanos(SPENT.with(Cell::get) / 1_000)
}

/// Returns true if the running turn has reached its bound.
#[inline]
pub fn turn_is_over() -> bool {
    if mutant::is(Mutant::TurnsWithoutEnd) {
        return false;
    }
    if choice::taken(Choice::TurnShort, 50) {
        // The turn stays over: the next turn does the remaining work.
        end_turn_at(Duration::ZERO);
    }
    SPENT.with(Cell::get) >= MAX.with(Cell::get)
}

/// Sets the bound of the running turn.
pub(crate) fn end_turn_at(spent: Duration) {
    let nanos = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
    MAX.with(|max| max.set(nanos.saturating_mul(1_000)));
}

/// Ends the turn if its bound is reached: every other ready task runs before this task continues. Cancel
/// safe.
pub async fn end_turn_if_over() {
    if turn_is_over() {
        task::yield_now().await;
    }
}

/// Begins a turn: called by the executor before each poll.
#[inline]
pub fn begin_turn() {
    SPENT.with(|spent| spent.set(0));
}

/// Ends a turn. Returns its accounted work.
#[inline]
pub fn finish_turn() -> Duration {
    let spent = SPENT.with(|spent| spent.replace(0));
    end_turn_at(TURN_MAX);
    let before = DONE.with(|done| done.replace(done.get().wrapping_add(spent)));
    let steps = (before.wrapping_add(spent) / STEP).saturating_sub(before / STEP);
    if steps > 0 {
        TOTAL_STEPS.fetch_add(steps, Ordering::Relaxed);
    }
    Duration::from_nanos(spent / 1_000)
}

/// Returns the accounted work of this thread's finished turns.
pub fn done() -> Duration {
    Duration::from_nanos(DONE.with(Cell::get) / 1_000)
}

/// Returns the accounted work of this process's threads since the start, or of the simulated host at the
/// host's speed. Never decreases.
pub fn total() -> Duration {
    match world::current() {
        Some(world) => world.worked(),
        None => Duration::from_micros(TOTAL_STEPS.load(Ordering::Relaxed) * STEP_MICROS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_at_its_bound_and_the_next_turn_starts_at_zero() {
        begin_turn();
        spend(Work::Read, 1_000);
        assert!(!turn_is_over(), "{:?}", spent());
        spend(Work::Read, 1_000);
        assert!(turn_is_over());
        assert_eq!(finish_turn(), Work::Read.cost(2_000));
        assert!(!turn_is_over() && spent().is_zero());
        assert!(total() >= Work::Read.cost(1_800));
    }
}
