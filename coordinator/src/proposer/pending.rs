//! Proposals of this node's clients that have not been applied here yet.
//!
//! The origin node answers its client when it has applied the command itself; no answer travels back from the
//! leader. Invariant: every registered proposal gets exactly one message, `Applied` or `Lost`.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rowlock_consensus::batching::ProposalQueue;
use rowlock_consensus::entry_times::EntryStages;
use rowlock_env::time::Instant;
use rowlock_proto::NodeId;
use rowlock_state::command::{Command, Origin};
use rowlock_state::outcome::Applied;

use tokio::sync::Notify;

use super::window::{Room, Window};
use crate::delivery::outbox::{Answer, Message, Outbox};
use crate::way::WriteTimeline;

/// Writes of this node that wait for their answers. Shared by the intake (registers, gives up) and apply
/// (answers; gives up when a snapshot has skipped the answers).
pub struct PendingWrites {
    node: NodeId,
    incarnation: u64,
    waiting: Mutex<Waiting>,
    /// There is room again, for an intake that has asked for it.
    room: Notify,
}

/// Invariant: the first of `answers` is there. The log has this node's proposals in the order of their
/// registration, so nearly always it is the first one that is answered.
struct Waiting {
    /// The request of the first of `answers`. They count up from 1.
    first: u64,
    /// Emptied when the answer is given.
    answers: VecDeque<Option<Waiter>>,
    count: usize,
    bytes: usize,
    window: Window,
    /// The intake waits for room, or for more of it.
    is_short: bool,
}

/// Where an answer goes.
struct Waiter {
    outbox: Outbox,
    tag: u64,
    /// When the intake took what is to be answered.
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

    /// There is some room, and the intake waits for it.
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
    /// Of a node's process; `incarnation` is random, so that the proposals of its former life are not taken
    /// for its own.
    pub fn new(node: NodeId, incarnation: u64) -> Self {
        let (answers, window) = (VecDeque::new(), Window::default());
        let waiting = Waiting { first: 1, answers, count: 0, bytes: 0, window, is_short: false };
        PendingWrites { node, incarnation, waiting: Mutex::new(waiting), room: Notify::new() }
    }

    /// Notes where the answer to a proposal of this size goes, and gives it its origin. `taken`: now,
    /// within a batch.
    pub fn register(&self, outbox: Outbox, tag: u64, bytes: usize, taken: Instant) -> Origin {
        let request = self.waiting.lock().add(Waiter { outbox, tag, taken, bytes });
        Origin { node: self.node, incarnation: self.incarnation, request }
    }

    /// Sends the answer, if the proposal came from here and its outcome has not been given up. Gives when the
    /// intake had taken it, if so. Of `command`, which is what was applied, the path is taken out.
    pub fn answer(
        &self,
        applied: Applied,
        command: &mut Command,
        (entry, answered): (EntryStages, Instant),
    ) -> Option<Instant> {
        if !self.is_ours(applied.origin) {
            return None;
        }
        let (waiter, has_room) = {
            let mut waiting = self.waiting.lock();
            let waiter = waiting.take(applied.origin.request)?;
            let (took, is_short) = (answered.saturating_since(waiter.taken), waiting.is_short);
            waiting.window.answered(took, is_short, answered);
            (waiter, waiting.has_room_at_last())
        };
        if has_room {
            self.room.notify_one();
        }
        let Waiter { outbox, tag, taken, .. } = waiter;
        debug_assert!(taken <= answered, "what is answered was taken before");
        let timeline = WriteTimeline { taken, entry, answered, path: command.take_path() };
        outbox.push(Message::Applied { tag, answer: Box::new(Answer { applied, timeline: Some(timeline) }) });
        Some(taken)
    }

    /// Tells everybody who waits that the outcome cannot be known. Returns how many proposals that were.
    pub fn give_up_all(&self) -> usize {
        let given_up = self.waiting.lock().take_all();
        self.room.notify_one();
        let mut count = 0;
        for Waiter { outbox, .. } in given_up {
            outbox.push(Message::Lost);
            count += 1;
        }
        count
    }

    /// Keeps in line what this node's clients wait for. Returns how many wait for others.
    pub fn keep_awaited(&self, line: &mut ProposalQueue) -> usize {
        let waiting = self.waiting.lock();
        line.retain(|proposal| self.is_ours(proposal.origin) && waiting.has(proposal.origin.request));
        waiting.count.checked_sub(line.len()).expect("Invariant: no proposal is in line twice")
    }

    fn is_ours(&self, origin: Origin) -> bool {
        origin.node == self.node && origin.incarnation == self.incarnation
    }

    /// What may be registered now. `None`: nothing; [`Self::room`] ends when something may.
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

    /// Another node leads, or this one in another term.
    pub(super) fn leader_changed(&self) {
        self.waiting.lock().window.leader_changed();
    }

    /// How many writes wait for their outcome.
    pub fn len(&self) -> usize {
        self.waiting.lock().count
    }

    /// Whether no write waits for its outcome.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;
    use rowlock_proto::{ErrorCode, Zxid};

    use rowlock_consensus::entry_times::EntryTimes;

    use super::*;
    use crate::delivery::outbox::{self, Inbox};

    fn answer(pending: &PendingWrites, origin: Origin) {
        let applied = Applied { origin, zxid: Zxid(1), result: Err(ErrorCode::NoNode) };
        let times = EntryTimes::default().take(1, time::now());
        pending.answer(applied, &mut Command::Noop, (times, time::now()));
    }

    /// Tags of answers; 0 for each `Lost`.
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
        assert_eq!(pending.give_up_all(), 2);
        assert!(pending.is_empty());
        let after = pending.register(outbox, 4, 100, time::now());
        assert_eq!(after.request, 4, "a number is never given twice");
        before.iter().for_each(|origin| answer(&pending, *origin));
        answer(&pending, after);
        assert_eq!(told(&mut inbox), [2, 0, 0, 4]);
    }
}
