//! Work that grows with its input, accounted for where it is done.
//!
//! A *turn* is one poll of a task. Code whose work is proportional to what others send (bytes read, frames
//! decoded, commands judged and applied, answers and events encoded, handshakes, hashes, reports) calls
//! [`spend`]. The sum of a turn has four uses: loops end their turn when it reaches [`TURN_MAX`]
//! ([`turn_is_over`], [`end_turn_if_over`]), so that no client keeps a thread from the other tasks; a metric
//! shows the longest turn ([`take_longest_turn`]); a node tells its load by [`total`]; and a simulated world
//! lets its hosts' time pass by it.
//!
//! Counts belong to the thread. Cost: one addition per call.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::choice::{self, Choice};
use crate::mutant::{self, Mutant};
use crate::{task, world};

/// A loop over input ends its turn after this much accounted work.
pub const TURN_MAX: Duration = Duration::from_millis(1);
const TURN_MAX_NS: u64 = 1_000_000;

/// Kinds of work, each with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// System calls on sockets, accepted connections included.
    SocketCall,
    /// Bytes received, decrypted included.
    ReceivedByte,
    /// Bytes sent, encrypted included.
    SentByte,
    /// Frames decoded, and requests dispatched.
    Frame,
    /// Reads answered from the local state, apart from the bytes of their answers.
    Read,
    /// Commands judged by the leader or submitted to it.
    Command,
    /// Steps of applied commands (`state::cost`).
    Step,
    /// Events and notices delivered to a connection or a stream.
    Event,
    /// Requests by HTTP, apart from the bytes of their answers.
    HttpRequest,
    /// Bytes of JSON and of other answers by HTTP encoded.
    EncodedByte,
    Handshake,
    /// Passwords and digests checked.
    Hash,
    /// Rows of reports: locks, sessions, znodes visited.
    Row,
    /// Bytes of entries and snapshots encoded, copied or checked.
    LogByte,
}

impl Work {
    /// Cost of one unit in picoseconds: instructions (`just instructions`) on a processor of 3 GHz at two
    /// instructions per cycle; system calls from traces.
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
    /// Picoseconds spent in the running turn of this thread.
    static SPENT: Cell<u64> = const { Cell::new(0) };
    /// Picoseconds after which the running turn is over.
    static MAX: Cell<u64> = const { Cell::new(TURN_MAX_NS * 1_000) };
}

thread_local! {
    /// Picoseconds of the turns of this thread that have ended.
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// Accounted work of this process, in steps of [`STEP_MICROS`]: threads seldom write to what they share.
static TOTAL_STEPS: AtomicU64 = AtomicU64::new(0);
const STEP_MICROS: u64 = 100;
const STEP: u64 = STEP_MICROS * 1_000_000;

/// The longest turn of this process since it was last taken, nanoseconds.
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);

/// Accounts for units of work of the running turn.
#[inline]
pub fn spend(work: Work, units: u64) {
    SPENT.with(|spent| spent.set(spent.get().saturating_add(units.saturating_mul(work.picoseconds()))));
}

/// Accounted work of the running turn.
pub fn spent() -> Duration {
    Duration::from_nanos(SPENT.with(Cell::get) / 1_000)
}

/// Whether the running turn has done its share.
#[inline]
pub fn turn_is_over() -> bool {
    if mutant::is(Mutant::TurnsWithoutEnd) {
        return false;
    }
    if choice::taken(Choice::TurnShort, 50) {
        // It stays over: what is left is done in the next one.
        end_turn_at(Duration::ZERO);
    }
    SPENT.with(Cell::get) >= MAX.with(Cell::get)
}

/// The running turn is over with this much accounted work.
pub(crate) fn end_turn_at(spent: Duration) {
    let nanos = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
    MAX.with(|max| max.set(nanos.saturating_mul(1_000)));
}

/// Ends the turn if it is over: every other ready task runs before this one goes on. Cancel safe.
pub async fn end_turn_if_over() {
    if turn_is_over() {
        task::give_way().await;
    }
}

/// Begins a turn: called by the executor before each poll.
#[inline]
pub fn begin_turn() {
    SPENT.with(|spent| spent.set(0));
}

/// Ends a turn: returns its accounted work, and remembers it if it is the longest.
#[inline]
pub fn finish_turn() -> Duration {
    let spent = SPENT.with(|spent| spent.replace(0));
    end_turn_at(TURN_MAX);
    let before = DONE.with(|done| done.replace(done.get().wrapping_add(spent)));
    let steps = (before.wrapping_add(spent) / STEP).saturating_sub(before / STEP);
    if steps > 0 {
        TOTAL_STEPS.fetch_add(steps, Ordering::Relaxed);
    }
    let nanos = spent / 1_000;
    if nanos > LONGEST_NS.load(Ordering::Relaxed) {
        LONGEST_NS.fetch_max(nanos, Ordering::Relaxed);
    }
    Duration::from_nanos(nanos)
}

/// Accounted work of all turns of this thread that have ended.
pub fn done() -> Duration {
    Duration::from_nanos(DONE.with(Cell::get) / 1_000)
}

/// Accounted work of all threads of this process since it began, or of the simulated host, whose speed
/// counts. Never falls.
pub fn total() -> Duration {
    match world::current() {
        Some(world) => world.worked(),
        None => Duration::from_micros(TOTAL_STEPS.load(Ordering::Relaxed) * STEP_MICROS),
    }
}

/// The longest turn of this process since the last call.
pub fn take_longest_turn() -> Duration {
    Duration::from_nanos(LONGEST_NS.swap(0, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_after_its_share_of_work_and_the_next_one_begins_with_nothing() {
        begin_turn();
        spend(Work::Read, 1_000);
        assert!(!turn_is_over(), "{:?}", spent());
        spend(Work::Read, 1_000);
        assert!(turn_is_over());
        assert_eq!(finish_turn(), Work::Read.cost(2_000));
        assert!(!turn_is_over() && spent().is_zero());
        assert!(take_longest_turn() >= Work::Read.cost(2_000));
        assert!(total() >= Work::Read.cost(1_800));
    }
}
