//! Proposals of this node's clients that are not applied here yet.
//!
//! The origin node answers its client after applying the command itself; the leader sends no reply.
//! Invariant: every registered proposal gets exactly one message, `Applied` or `Lost`.
//!
//! Bound on the writes of this node that are in flight to the log. Pure.
//!
//! Writes in flight form one line, at this node, at the leader and in the log: a new write waits for all of
//! them. So a node keeps no more in flight than the cluster answers within `AIM`, or within twice the round
//! trip without load: far members, or slow disks, need more for the same throughput. All other writes wait in
//! the fair queue, where each connection gets its turn; but small writes proceed although large ones fill the
//! window.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::WRITES_UNDER_WAY_MAX;
use parking_lot::Mutex;
use rowlock_consensus::batching::ProposalQueue;
use rowlock_consensus::entry_times::EntryStages;
use rowlock_consensus::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};
use rowlock_env::decides;
use rowlock_env::time::Instant;
use rowlock_proto::NodeId;
use rowlock_state::command::{Origin, Proposal};
use rowlock_state::outcome::Applied;
use tokio::sync::Notify;

use crate::node::delivery::outbox::{Answer, Message, Outbox};
use crate::node::slow::WriteTimeline;

/// Writes of this node that wait for their results. Shared by the intake (registers, gives up) and apply
/// (answers; gives up when a snapshot has skipped the results).
pub struct PendingWrites {
    node: NodeId,
    incarnation: u64,
    waiting: Mutex<Waiting>,
    /// Wakes an intake that waits for room.
    room: Notify,
}

/// Invariant: the first of `answers` is occupied. The log has this node's proposals in the order of their
/// registration, so apply nearly always answers the first one.
struct Waiting {
    /// Request number of the first of `answers`. Numbers count up from 1.
    first: u64,
    /// Waiters by request number. An answered one becomes `None`.
    answers: VecDeque<Option<Waiter>>,
    count: usize,
    bytes: usize,
    window: Window,
    /// Set while the intake waits for room, or for more room.
    is_short: bool,
}

/// Destination of a result.
struct Waiter {
    outbox: Outbox,
    tag: u64,
    /// Time at which the intake took the write.
    taken: Instant,
    bytes: usize,
}

impl Waiting {
    fn add(&mut self, waiter: Waiter) -> u64 {
        self.bytes += waiter.bytes;
        self.answers.push_back(Some(waiter));
        self.count += 1;
        self.first + self.answers.len() as u64 - 1
    }

    fn take(&mut self, request: u64) -> Option<Waiter> {
        let at = usize::try_from(request.checked_sub(self.first)?).ok()?;
        let found = self.answers.get_mut(at)?.take()?;
        self.count -= 1;
        self.bytes -= found.bytes;
        while let Some(None) = self.answers.front() {
            self.answers.pop_front();
            self.first += 1;
        }
        Some(found)
    }

    fn has(&self, request: u64) -> bool {
        let at = request.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        at.is_some_and(|at| self.answers.get(at).is_some_and(Option::is_some))
    }

    /// Returns whether a waiting intake now has room, and clears its request.
    fn has_room_at_last(&mut self) -> bool {
        self.is_short
            && self.window.room(self.count, self.bytes).is_some()
            && std::mem::take(&mut self.is_short)
    }

    fn take_all(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        self.first += self.answers.len() as u64;
        (self.count, self.bytes) = (0, 0);
        std::mem::take(&mut self.answers).into_iter().flatten()
    }
}

impl PendingWrites {
    /// Creates the table of a node's process; the random `incarnation` excludes the proposals of earlier
    /// processes.
    pub fn new(node: NodeId, incarnation: u64) -> Self {
        let (answers, window) = (VecDeque::new(), Window::default());
        let waiting = Waiting { first: 1, answers, count: 0, bytes: 0, window, is_short: false };
        PendingWrites { node, incarnation, waiting: Mutex::new(waiting), room: Notify::new() }
    }

    /// Registers the destination of a proposal's result and returns the proposal's origin. `taken`: the
    /// present time, shared by the batch.
    pub fn register(&self, outbox: Outbox, tag: u64, bytes: usize, taken: Instant) -> Origin {
        let request = self.waiting.lock().add(Waiter { outbox, tag, taken, bytes });
        Origin { node: self.node, incarnation: self.incarnation, request }
    }

    /// Sends the result, if this process proposed the command and has not given its outcome up. Returns the
    /// time at which the intake took the write. Takes the path out of `command`, the applied command.
    pub fn answer(
        &self,
        applied: Applied,
        proposal: &mut Proposal,
        (entry, answered): (EntryStages, Instant),
    ) -> Option<Instant> {
        if decides!("proposal-is-of-another-node", !self.is_ours(proposal.origin)) {
            return None;
        }
        let (waiter, has_room) = {
            let mut waiting = self.waiting.lock();
            let waiter = waiting.take(proposal.origin.request)?;
            let (took, is_short) = (answered.saturating_since(waiter.taken), waiting.is_short);
            waiting.window.answered(took, is_short, answered);
            (waiter, waiting.has_room_at_last())
        };
        if has_room {
            self.room.notify_one();
        }
        let Waiter { outbox, tag, taken, .. } = waiter;
        debug_assert!(taken <= answered, "what is answered was taken before");
        let timeline = WriteTimeline { taken, entry, answered, path: proposal.command.take_path() };
        outbox.push(Message::Applied { tag, answer: Box::new(Answer { applied, timeline: Some(timeline) }) });
        Some(taken)
    }

    /// Sends `Lost` to every waiting connection. Returns the number of proposals.
    pub fn abandon_all(&self) -> usize {
        let given_up = self.waiting.lock().take_all();
        self.room.notify_one();
        let mut count = 0;
        for Waiter { outbox, .. } in given_up {
            outbox.push(Message::Lost);
            count += 1;
        }
        count
    }

    /// Keeps only queued proposals with a waiting client in `line`. Returns the number of waiting writes
    /// outside `line`.
    pub fn keep_awaited(&self, line: &mut ProposalQueue) -> usize {
        let waiting = self.waiting.lock();
        line.retain(|proposal| {
            decides!(
                "proposal-is-awaited",
                self.is_ours(proposal.origin) && waiting.has(proposal.origin.request)
            )
        });
        waiting.count.checked_sub(line.len()).expect("Invariant: no proposal is in line twice")
    }

    fn is_ours(&self, origin: Origin) -> bool {
        decides!("origin-is-this-process", origin.node == self.node && origin.incarnation == self.incarnation)
    }

    /// Returns the room for registrations. After `None`, [`Self::room`] waits for room.
    pub(super) fn room_now(&self) -> Option<Room> {
        let mut waiting = self.waiting.lock();
        let room = waiting.window.room(waiting.count, waiting.bytes);
        waiting.is_short = room.is_none_or(|room| !room.takes_larger);
        room
    }

    /// Waits until there may be room again. Cancel safe.
    pub(super) async fn room(&self) {
        self.room.notified().await;
    }

    /// Resets the window for another leader or term.
    pub(super) fn leader_changed(&self) {
        self.waiting.lock().window.leader_changed();
    }

    /// Number of writes with a pending outcome.
    pub fn len(&self) -> usize {
        self.waiting.lock().count
    }

    /// Returns whether no write has a pending outcome.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Target time to an answer, including the writes in flight before it.
const AIM: Duration = Duration::from_millis(10);
/// Minimum time between two changes of the window.
const ADJUST_EVERY: Duration = Duration::from_millis(10);
const LEAST: usize = BATCH_MAX_COMMANDS / 4;
/// Bytes that are always allowed, as long as commands are.
const SMALL_BYTES: usize = 4 << 10;

#[derive(Debug)]
struct Window {
    commands: usize,
    /// Shortest time to an answer under this leader.
    shortest: Option<Duration>,
    adjust_at: Option<Instant>,
}

/// Admissible writes: their number, and their bytes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) commands: usize,
    pub(super) bytes: usize,
    /// Admits a single larger write, too.
    pub(super) takes_larger: bool,
}

impl Default for Window {
    fn default() -> Self {
        Window { commands: BATCH_MAX_COMMANDS, shortest: None, adjust_at: None }
    }
}

impl Window {
    /// Returns the room beside the commands in flight.
    pub(super) fn room(&self, commands: usize, bytes: usize) -> Option<Room> {
        let commands = self.commands.saturating_sub(commands);
        let left = (self.commands * (BATCH_MAX_BYTES / BATCH_MAX_COMMANDS)).saturating_sub(bytes);
        (commands > 0).then_some(Room { commands, bytes: left.max(SMALL_BYTES), takes_larger: left > 0 })
    }

    /// Adapts the window to the time of an answer. `is_short`: other writes wait for room.
    pub(super) fn answered(&mut self, took: Duration, is_short: bool, now: Instant) {
        let shortest = self.shortest.map_or(took, |shortest| shortest.min(took));
        self.shortest = Some(shortest);
        if decides!("window-was-adjusted", self.adjust_at.is_some_and(|at| now < at)) {
            return;
        }
        self.adjust_at = Some(now + ADJUST_EVERY);
        if decides!("window-is-slow", took > AIM.max(2 * shortest)) {
            self.commands = (self.commands - self.commands / 8).max(LEAST);
        } else if is_short {
            self.commands = (self.commands + self.commands / 8).min(WRITES_UNDER_WAY_MAX);
        }
        assert!((LEAST..=WRITES_UNDER_WAY_MAX).contains(&self.commands), "a window within its bounds");
    }

    /// Resets the window: another leader may be nearer or farther.
    pub(super) fn leader_changed(&mut self) {
        *self = Window::default();
    }
}

#[cfg(test)]
mod tests {
    use rowlock_consensus::entry_times::EntryTimes;
    use rowlock_env::time;
    use rowlock_proto::{ErrorCode, Zxid};
    use rowlock_state::command::Command;

    use super::*;
    use crate::node::delivery::outbox::{self, Inbox};
    use crate::node::proposer::of_the_cluster;

    fn answer(pending: &PendingWrites, origin: Origin) {
        let applied = Applied { zxid: Zxid(1), result: Err(ErrorCode::NoNode), attached: None };
        let times = EntryTimes::default().take(1, time::now());
        let mut proposal = Proposal { origin, ..of_the_cluster(Command::Noop) };
        pending.answer(applied, &mut proposal, (times, time::now()));
    }

    /// Returns the tags of results; 0 for each `Lost`.
    fn told(inbox: &mut Inbox) -> Vec<u64> {
        let mut messages = VecDeque::new();
        inbox.take(&mut messages).unwrap();
        let tag = |message| match message {
            Message::Applied { tag, .. } => tag,
            Message::Lost => 0,
            other => panic!("{other:?}"),
        };
        messages.into_iter().map(tag).collect()
    }

    #[test]
    fn everybody_is_told_once_in_whatever_order_the_answers_come() {
        let (outbox, mut inbox) = outbox::channel();
        let pending = PendingWrites::new(NodeId(1), 7);
        let register = |tag| pending.register(outbox.clone(), tag, 100, time::now());
        let origins: Vec<Origin> = (1..=4).map(register).collect();
        assert_eq!(origins.iter().map(|origin| origin.request).collect::<Vec<_>>(), [1, 2, 3, 4]);
        for at in [2, 0, 0, 1, 2] {
            answer(&pending, origins[at]);
        }
        assert_eq!(told(&mut inbox), [3, 1, 2]);
        assert_eq!(pending.len(), 1);
        answer(&pending, Origin { incarnation: 8, ..origins[3] });
        answer(&pending, Origin { node: NodeId(2), ..origins[3] });
        assert!(told(&mut inbox).is_empty(), "that was somebody else's");
    }

    #[test]
    fn what_was_given_up_is_answered_no_more_and_what_comes_then_is() {
        let (outbox, mut inbox) = outbox::channel();
        let pending = PendingWrites::new(NodeId(1), 7);
        let register = |tag| pending.register(outbox.clone(), tag, 100, time::now());
        let before: Vec<Origin> = (1..=3).map(register).collect();
        answer(&pending, before[1]);
        assert_eq!(pending.abandon_all(), 2);
        assert!(pending.is_empty());
        let after = pending.register(outbox, 4, 100, time::now());
        assert_eq!(after.request, 4, "a number is never given twice");
        before.iter().for_each(|origin| answer(&pending, *origin));
        answer(&pending, after);
        assert_eq!(told(&mut inbox), [2, 0, 0, 4]);
    }

    /// Returns the window after a minute of answers that take `base` plus a time per write in flight.
    fn settled(base: Duration, per_second: u32) -> usize {
        let (mut window, mut now) = (Window::default(), time::now());
        window.answered(base, false, now);
        for _ in 0..6_000 {
            now += ADJUST_EVERY;
            let commands = u32::try_from(window.commands).expect("a window in memory");
            window.answered(base.max(Duration::from_secs(1) * commands / per_second), true, now);
        }
        window.commands
    }

    #[test]
    fn writes_in_flight_fit_the_aim_and_far_members_get_more() {
        let near = settled(Duration::from_millis(2), 30_000);
        assert!((200..=350).contains(&near), "{near} commands at 30,000 a second");
        assert_eq!(settled(Duration::from_millis(2), 5_000), LEAST, "a slow node");
        assert_eq!(settled(Duration::from_millis(100), 100_000), WRITES_UNDER_WAY_MAX, "far members");
    }

    #[test]
    fn a_new_leader_resets_the_window() {
        let (mut window, now) = (Window::default(), time::now());
        window.answered(Duration::from_millis(1), false, now);
        window.answered(Duration::from_secs(1), false, now + ADJUST_EVERY);
        assert!(window.commands < BATCH_MAX_COMMANDS);
        window.leader_changed();
        assert_eq!((window.commands, window.shortest), (BATCH_MAX_COMMANDS, None));
    }

    #[test]
    fn a_window_without_need_does_not_grow_and_bytes_count_too() {
        let (mut window, now) = (Window::default(), time::now());
        for lap in 0..100 {
            window.answered(Duration::from_millis(1), false, now + ADJUST_EVERY * lap);
        }
        assert_eq!(window.commands, BATCH_MAX_COMMANDS);
        let (all, most) = (BATCH_MAX_COMMANDS, BATCH_MAX_BYTES);
        let room = |commands, bytes, takes_larger| Some(Room { commands, bytes, takes_larger });
        assert_eq!(window.room(0, 0), room(all, most, true));
        assert_eq!(window.room(all - 1, most - 1), room(1, SMALL_BYTES, true));
        assert_eq!(window.room(1, most), room(all - 1, SMALL_BYTES, false), "small ones still go");
        assert_eq!(window.room(all, 1), None);
    }
}
