//! Proposals of this node's clients that have not been applied here yet.
//!
//! The origin node answers its client when it has applied the command itself; no answer travels back from the leader.
//! Invariant: every registered proposal gets exactly one message, `Applied` or `Lost`.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rowlock_proto::NodeId;
use rowlock_state::command::Origin;
use rowlock_state::outcome::Applied;

use crate::client::outbox::{Message, Outbox};

/// What this node waits for. Shared by the router (registers, gives up) and apply (answers).
pub struct Pending {
    node: NodeId,
    incarnation: u64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Counts up from 1.
    last_request: u64,
    answers: BTreeMap<u64, (Outbox, u64)>,
}

impl Pending {
    /// Of a node's process; `incarnation` is random, so that the proposals of its former life are not taken for its own.
    pub fn new(node: NodeId, incarnation: u64) -> Self {
        Pending { node, incarnation, waiting: Mutex::new(Waiting::default()) }
    }

    /// Notes where the answer goes, and gives the proposal its origin.
    pub fn register(&self, outbox: Outbox, tag: u64) -> Origin {
        let mut waiting = self.waiting.lock();
        waiting.last_request += 1;
        let request = waiting.last_request;
        waiting.answers.insert(request, (outbox, tag));
        Origin { node: self.node, incarnation: self.incarnation, request }
    }

    /// Sends the answer, if the proposal came from here and its outcome has not been given up.
    pub fn answer(&self, applied: Applied) {
        if applied.origin.node != self.node || applied.origin.incarnation != self.incarnation {
            return;
        }
        let found = self.waiting.lock().answers.remove(&applied.origin.request);
        if let Some((outbox, tag)) = found {
            outbox.push(Message::Applied { tag, applied: Box::new(applied) });
        }
    }

    /// Tells everybody who waits that the outcome cannot be known. Returns how many proposals that were.
    pub fn give_up_all(&self) -> usize {
        let answers = std::mem::take(&mut self.waiting.lock().answers);
        let count = answers.len();
        for (outbox, _) in answers.into_values() {
            outbox.push(Message::Lost);
        }
        count
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.lock().answers.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
