//! Choices: behavior allowed at any time, but rare in time or order, and made likely in a simulated run.
//! FoundationDB calls this technique *buggify*.
//!
//! The list below names each choice. The code at its place calls `choice::taken(Choice::X, 50)`: true with
//! probability 1/50 in a run with this choice enabled, and otherwise false. Production enables no choice and
//! draws no random number.
//!
//! Invariant: the behavior behind a choice is correct in production, too, at any time. Replicated state makes
//! no choices.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::rare::{self, named};
use crate::rng;

named! {
    /// Allowed behavior for a simulated run to choose.
    Choice:

    // The log.

    /// Raft refuses an entry of its leader, after accepting later entries.
    EntryRefused = "entry-refused";
    /// An entry, or a batch to the leader, takes a single command, although more commands wait.
    EntryOfOne = "entry-of-one";
    /// The log begins a segment before the last segment is full.
    SegmentEarly = "segment-early";
    /// A node writes a snapshot early.
    SnapshotEarly = "snapshot-early";
    /// The log purges all entries before the snapshot, so that lagging followers need the snapshot.
    LogPurged = "log-purged";
    /// A node sends a small snapshot in several chunks.
    SnapshotInPieces = "snapshot-in-pieces";
    /// A leader sends a follower a single missing entry at a time.
    EntriesOneByOne = "entries-one-by-one";
    /// A follower learns of a commit late, like a follower without clients.
    CommitToldLate = "commit-told-late";

    // Forwarded writes.

    /// A link to the leader has space for a single batch.
    ForwardWindowFull = "forward-window-full";
    /// The leader refuses a batch, and all later batches on this connection.
    ForwardRefused = "forward-refused";
    /// A proposal from the leader itself gets lost.
    DutyLost = "duty-lost";

    // Sessions and conversations.

    /// Keepalives wait for the next regular report to the leader.
    ReportLate = "report-late";
    /// The proposed expiry of a session gets lost.
    ExpiryLost = "expiry-lost";
    /// A turn ends before its work is done.
    TurnShort = "turn-short";
    /// A listener accepts a connection late, and all later connections.
    AcceptedLate = "accepted-late";

    // The client.

    /// A client sends a keepalive early.
    PingEarly = "ping-early";
    /// An idle client moves to another connection.
    ClientMoves = "client-moves";
    /// A client treats its window of numbered writes as full after a single unfinished write.
    TagsFull = "tags-full";
    /// A client gives up a request after the first broken connection, not the twelfth.
    GivenUpSoon = "given-up-soon";
}

const _: () = assert!(Choice::ALL.len() <= 64, "a bit for each");

thread_local! {
    static ENABLED: Cell<u64> = const { Cell::new(0) };
}

/// Restores the previous set on a drop.
#[must_use]
pub struct Enabled {
    before: u64,
    // Not `Send`: the set belongs to the current thread.
    _here: PhantomData<*const ()>,
}

impl Drop for Enabled {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

/// Enables exactly these choices for the code of this thread.
pub fn enable(choices: impl IntoIterator<Item = Choice>) -> Enabled {
    let set = choices.into_iter().fold(0, |set, choice| set | bit(choice));
    Enabled { before: ENABLED.replace(set), _here: PhantomData }
}

/// Returns true if the choice is enabled and drawn, with probability 1/`one_in`.
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
