//! [`Api`]: the node, as the requests on leases, locks and znodes need it.

use std::sync::Arc;

use rowlock_env::decides;
use rowlock_env::time;
use tokio::sync::Semaphore;

use super::Refusal;
use super::pace::Pace;
use super::shares::SlotPool;
use crate::access::lock_feed::LockFeed;
use crate::access::report::Reports;
use crate::limits::{API_ANSWERS_MAX_BYTES, API_WAITS_MAX, API_WATCHES_MAX};
use crate::node::zk::ClientContext;

/// Entry point for requests on leases, locks and znodes. `new` takes the node's context, the context of a
/// ZooKeeper connection.
pub struct Api {
    pub(super) context: ClientContext,
    pub(super) reports: Reports,
    /// Lock events for streams and elections.
    pub(super) feed: Arc<LockFeed>,
    /// Slots for requests waiting for a lock.
    pub(super) waits: SlotPool,
    /// Slots for streams of lock events.
    pub(super) watches: SlotPool,
    /// Budget for znode bytes in transfer between clients and the node.
    pub(super) bytes: Arc<Semaphore>,
    /// Pauses of all event streams.
    pub(super) pace: Arc<Pace>,
}

impl Api {
    /// Creates the API from a connection's view of the node, the node's reports and the feed of lock events.
    pub(crate) fn new(context: ClientContext, reports: Reports, feed: Arc<LockFeed>) -> Self {
        Self::bounded((context, reports, feed), API_WAITS_MAX)
    }

    pub(super) fn bounded(
        (context, reports, feed): (ClientContext, Reports, Arc<LockFeed>),
        waits: usize,
    ) -> Self {
        let (waits, watches) = (SlotPool::new(waits), SlotPool::new(API_WATCHES_MAX));
        Api {
            context,
            reports,
            feed,
            waits,
            watches,
            bytes: Arc::new(Semaphore::new(API_ANSWERS_MAX_BYTES)),
            pace: Arc::default(),
        }
    }

    /// Takes an invitation for a client to connect to the leader. Returns false if no invitation is left.
    pub fn invite(&self) -> bool {
        self.context.replica.invitations.take(time::now(), &self.context.metrics)
    }

    pub(super) fn check_serving(&self) -> Result<(), Refusal> {
        let serving = self.context.status.borrow().serving;
        if decides!("api-node-serves", serving) { Ok(()) } else { Err(Refusal::NotServing) }
    }
}
