//! Choices: behavior that is legal at any time, but rare in time or order, so that a simulated run makes it
//! likely. FoundationDB calls it *buggify*.
//!
//! Each choice is listed here by name and stands at its place as `choice::taken(Choice::X, 50)`: true one
//! time in 50 in a run that enables it, and otherwise false. Production enables none, and draws nothing.
//!
//! Invariant: what follows a choice is right in production, too, whenever it happens. Replicated state makes
//! no choices.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::rare::{self, named};
use crate::rng;

named! {
    /// Legal behavior that a simulated run may choose.
    Choice:

    // The log.

    /// Raft refuses an entry of its leader, so late that it has taken others meanwhile.
    EntryRefused = "entry-refused";
    /// An entry, or a batch to the leader, takes one command, whatever else waits.
    EntryOfOne = "entry-of-one";
    /// A segment of the log begins before the last one is full.
    SegmentEarly = "segment-early";
    /// A snapshot is written before it is due.
    SnapshotEarly = "snapshot-early";
    /// All entries before the snapshot leave the log, so that followers that lack one need the snapshot.
    LogPurged = "log-purged";
    /// A snapshot is sent in several chunks, though it fits into one.
    SnapshotInPieces = "snapshot-in-pieces";
    /// A follower is sent one entry of those that it lacks.
    EntriesOneByOne = "entries-one-by-one";
    /// A follower is told of a commit late, as if it had no clients.
    CommitToldLate = "commit-told-late";

    // Writes on their way.

    /// A link to the leader has room for one batch.
    ForwardWindowFull = "forward-window-full";
    /// The leader refuses a batch, and all behind it on this connection.
    ForwardRefused = "forward-refused";
    /// Something that the leader proposes by itself gets lost.
    DutyLost = "duty-lost";

    // Sessions and conversations.

    /// Signs of life wait for the next regular report to the leader.
    ReportLate = "report-late";
    /// The proposed end of a session that has expired gets lost.
    ExpiryLost = "expiry-lost";
    /// A turn is over before its work is done.
    TurnShort = "turn-short";
    /// A connection is accepted late, and all behind it.
    AcceptedLate = "accepted-late";

    // The client.

    /// A client sends a heartbeat before it is due.
    PingEarly = "ping-early";
    /// An idle client leaves its connection for another one.
    ClientMoves = "client-moves";
    /// A client takes its window of numbered writes for full, while one is under way.
    TagsFull = "tags-full";
    /// A client gives a request up when a connection breaks over it, and not the twelfth.
    GivenUpSoon = "given-up-soon";
}

const _: () = assert!(Choice::ALL.len() <= 64, "a bit for each");

thread_local! {
    static ENABLED: Cell<u64> = const { Cell::new(0) };
}

/// Restores the previous set when dropped.
#[must_use]
pub struct Enabled {
    before: u64,
    // Belongs to the thread that it was made on.
    _here: PhantomData<*const ()>,
}

impl Drop for Enabled {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

/// The code of this thread may take these choices from now on, and no other.
pub fn enable(choices: impl IntoIterator<Item = Choice>) -> Enabled {
    let set = choices.into_iter().fold(0, |set, choice| set | bit(choice));
    Enabled { before: ENABLED.replace(set), _here: PhantomData }
}

/// Whether the choice is taken here and now: one time in `one_in` where it is enabled.
#[inline]
pub fn taken(choice: Choice, one_in: u64) -> bool {
    ENABLED.get() & bit(choice) != 0 && is_drawn(choice, one_in)
}

#[cold]
fn is_drawn(choice: Choice, one_in: u64) -> bool {
    let is_drawn = rng::below(one_in) == 0;
    if is_drawn {
        rare::count_choice(choice);
    }
    is_drawn
}

const fn bit(choice: Choice) -> u64 {
    1 << choice as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rare::Counts;

    #[test]
    fn a_choice_is_taken_and_counted_where_it_is_enabled() {
        let names: BTreeSet<&str> = Choice::ALL.iter().map(|choice| choice.name()).collect();
        assert_eq!(names.len(), Choice::ALL.len(), "no name comes twice");
        let _ = Counts::take();
        assert!(!taken(Choice::TurnShort, 1), "production enables none");
        let _outer = enable([Choice::TurnShort, Choice::TagsFull]);
        assert!(taken(Choice::TurnShort, 1) && taken(Choice::TagsFull, 1) && !taken(Choice::DutyLost, 1));
        {
            let _inner = enable([]);
            assert!(!taken(Choice::TurnShort, 1));
        }
        assert!((0..1_000).any(|_| taken(Choice::TurnShort, 5)) && !taken(Choice::TurnShort, u64::MAX));
        let counts = Counts::take();
        assert!(counts.of_choice(Choice::TurnShort) > 1 && counts.of_choice(Choice::TagsFull) == 1);
    }
}
