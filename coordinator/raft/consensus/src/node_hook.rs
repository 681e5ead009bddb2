//! A hook on all changes of a node's log and state: for simulators, audits and tests.
//!
//! Log storage, state machine, leadership and session expiry report each change to the hook after the change;
//! the hook returns nothing and changes nothing. A node without a hook pays one check of an `Option` per
//! entry.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::{NodeId, SessionId};
use rowlock_state::Machine;

/// A position in the replicated log. Equal positions in two nodes' logs hold the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Raft term of the leader that created the entry.
    pub term: u64,
    pub leader: NodeId,
    /// Index of the entry in the log.
    pub index: u64,
}

/// A node's vote. Votes are ordered, by term first; a node's vote never decreases, also across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ballot {
    pub term: u64,
    pub candidate: NodeId,
    /// True if a quorum has cast this vote: the candidate leads.
    pub elected: bool,
}

/// Receives one node's changes, from the start of the node (`Node::start_hooked`) to its end.
///
/// The calls of one group below follow the order of the changes; calls of different groups have no order
/// unless stated. Different groups may call from different threads.
///
/// # The duties of a hook
///
/// 1. Return soon and never wait: the node's log or state stands still during the call, some calls under a
///    lock.
/// 2. Never call back into the node, nor into a client of the node.
/// 3. Copy what the hook needs: borrowed arguments do not outlive the call.
pub trait NodeHook: Send + Sync + 'static {
    // The log.

    /// The node has read its log from the disk. The first call, except for the truncation during the read.
    /// The log begins after `purged` and ends with `last`; its entries follow as [`NodeHook::appended`].
    /// `remembers`: the log and the snapshot have all entries that the node has acknowledged.
    fn opened(
        &self,
        vote: Option<Ballot>,
        purged: Option<Position>,
        last: Option<Position>,
        remembers: bool,
    ) {
        let _ = (vote, purged, last, remembers);
    }

    /// The node's vote is on disk; the node sends the vote only afterwards.
    fn voted(&self, vote: Ballot) {
        let _ = vote;
    }

    /// An entry was appended to the local log, neither flushed nor committed yet. `payload`: an encoded
    /// [`Batch`](rowlock_state::command::Batch); none in an entry of Raft itself. Always before the entry is
    /// [`applied`](NodeHook::applied) here.
    fn appended(&self, entry: Position, payload: Option<&[u8]>) {
        let _ = (entry, payload);
    }

    /// The log entry `entry` is a membership: one set of voters, or two while the voters change, and the
    /// members without a vote. Before the entry is [`appended`](NodeHook::appended).
    fn members(&self, entry: Position, voters: &[BTreeSet<NodeId>], learners: &BTreeSet<NodeId>) {
        let _ = (entry, voters, learners);
    }

    /// The node is about to acknowledge the entries up to `upto` to a leader.
    fn acknowledges(&self, upto: Position) {
        let _ = upto;
    }

    /// The entries after `after` (all, if `None`) were removed from the local log: another leader's entries
    /// replace them.
    fn truncated(&self, after: Option<Position>) {
        let _ = after;
    }

    /// The entries up to `upto` were purged from the local log: a snapshot covers them.
    fn purged(&self, upto: Position) {
        let _ = upto;
    }

    // The state. Called under its lock: no task reads the state between the change and the call.

    /// A committed entry was applied; `machine` is the state directly afterwards. Every entry once, without
    /// gaps after the previous one or after the last [`installed`](NodeHook::installed).
    fn applied(&self, entry: Position, payload: Option<&[u8]>, machine: &Machine) {
        let _ = (entry, payload, machine);
    }

    /// A snapshot up to `entry` has replaced the state: at the start, if there is a snapshot, and whenever
    /// the leader sends one.
    fn installed(&self, entry: Option<Position>, machine: &Machine) {
        let _ = (entry, machine);
    }

    // Leadership, as the node's own tasks see it: a term that ends at once may never be reported.

    /// This node leads `term` from now on. The node proposes nothing before the commit of an own entry.
    fn leads(&self, term: u64) {
        let _ = term;
    }

    fn follows(&self, term: u64, leader: Option<NodeId>) {
        let _ = (term, leader);
    }

    /// This leader of `term` confirms the keepalives of these sessions: the leader restarted their timers
    /// `touched` ago, and a quorum has acknowledged a request sent `contact` ago or later. So no node was
    /// elected in a later term before that time.
    fn confirms(&self, term: u64, contact: Duration, touched: Duration, sessions: &[SessionId]) {
        let _ = (term, contact, touched, sessions);
    }

    /// This leader of `term` has decided that the session's timeout has passed, and proposes its end.
    /// `contact`: time since the leader's last contact with a quorum.
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
    pub fn notify(&self, call: impl FnOnce(&dyn NodeHook)) {
        if let Some(hook) = &self.0 {
            call(&**hook);
        }
    }
}
