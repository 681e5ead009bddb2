//! A hook that is told of all changes of a node's log and state: for simulators, audits and tests.
//!
//! Stands beside the flow: log storage, state machine, leadership and session expiry tell it what has just
//! happened; it answers nothing and changes nothing. A node without a hook pays one check of an `Option`
//! per entry.

use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::{NodeId, SessionId};
use rowlock_state::Machine;

/// A place in the replicated log. Positions of two nodes' logs that are equal hold the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Raft term of the leader that made the entry.
    pub term: u64,
    pub leader: NodeId,
    /// Counts the entries of the log.
    pub index: u64,
}

/// For whom a node has voted. Votes are ordered, by term first, and a node's never goes back, also over a
/// restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ballot {
    pub term: u64,
    pub candidate: NodeId,
    /// A quorum has voted so: the candidate leads.
    pub elected: bool,
}

/// Hears of one node's life, from the start of the node (`Node::start_hooked`) to its end.
///
/// What is told in one group below comes in the order in which it happens; between groups there is no order
/// but where it is named. Groups may be told from different threads.
///
/// # The duties of a hook
///
/// 1. Return soon, and never wait: the node's log, or its state, stands still meanwhile, in places under a
///    lock.
/// 2. Never call back into the node, nor into a client of it.
/// 3. Keep copies of what it needs: nothing that it is lent outlives the call.
pub trait NodeHook: Send + Sync + 'static {
    // The log.

    /// The log was read from the disk, once, before anything else is told but what was cut off it meanwhile.
    /// It begins behind `purged` and ends with `last`; its entries follow as [`NodeHook::appended`].
    fn opened(&self, vote: Option<Ballot>, purged: Option<Position>, last: Option<Position>) {
        let _ = (vote, purged, last);
    }

    /// The node's vote is on disk; it is not sent before.
    fn voted(&self, vote: Ballot) {
        let _ = vote;
    }

    /// An entry was taken into the local log, behind the last one. It is neither flushed nor committed by
    /// that. `payload`: an encoded [`Batch`](rowlock_state::command::Batch); none in an entry of Raft's own.
    /// Always before the entry is [`applied`](NodeHook::applied) here.
    fn appended(&self, entry: Position, payload: Option<&[u8]>) {
        let _ = (entry, payload);
    }

    /// A leader is about to hear that the entries up to `upto` are on this node's disk.
    fn acknowledges(&self, upto: Position) {
        let _ = upto;
    }

    /// The entries behind `after` (all, if none) were taken out of the local log: another leader's take their
    /// place.
    fn truncated(&self, after: Option<Position>) {
        let _ = after;
    }

    /// The entries up to `upto` were taken out of the local log: a snapshot covers them.
    fn purged(&self, upto: Position) {
        let _ = upto;
    }

    // The state. Called under its lock: no task reads it between the change and the call.

    /// A committed entry was applied; `machine` is the state right after it. Every entry once, without gaps
    /// from the last one or from the last [`installed`](NodeHook::installed).
    fn applied(&self, entry: Position, payload: Option<&[u8]>, machine: &Machine) {
        let _ = (entry, payload, machine);
    }

    /// A snapshot up to `entry` has replaced the state: at start, if there is one, and whenever the leader
    /// sends one.
    fn installed(&self, entry: Option<Position>, machine: &Machine) {
        let _ = (entry, machine);
    }

    // Leadership, as the node's own tasks see it: a term that ends at once may never be told.

    /// This node leads `term` from now on. It proposes nothing before it has committed an entry of its own.
    fn leads(&self, term: u64) {
        let _ = term;
    }

    fn follows(&self, term: u64, leader: Option<NodeId>) {
        let _ = (term, leader);
    }

    /// This leader of `term` confirms that these sessions live: it restarted their timers `touched` ago, and
    /// as far as it knows, a quorum has acknowledged a request that it sent `contact` ago, or later. So no
    /// node may have been elected in a later term before that.
    fn confirms(&self, term: u64, contact: Duration, touched: Duration, sessions: &[SessionId]) {
        let _ = (term, contact, touched, sessions);
    }

    /// This leader of `term` has decided that the session's time has passed, and proposes its end. Its last
    /// contact to a quorum was `contact` ago.
    fn expires(&self, session: SessionId, term: u64, contact: Duration) {
        let _ = (session, term, contact);
    }
}

#[derive(Clone, Default)]
pub struct Hook(Option<Arc<dyn NodeHook>>);

impl Hook {
    pub fn by(hook: Arc<dyn NodeHook>) -> Self {
        Hook(Some(hook))
    }

    #[inline]
    pub fn tell(&self, what: impl FnOnce(&dyn NodeHook)) {
        if let Some(hook) = &self.0 {
            what(&**hook);
        }
    }
}
