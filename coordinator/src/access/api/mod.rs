//! Locks, leases and znodes for clients without a session of the ZooKeeper protocol. This layer contains the
//! decisions and imports neither HTTP nor sockets; `http/api` translates between HTTP and this layer.
//!
//! A *REST lease* (docs/rest.md) is an ordinary session, and a request on a lock becomes the command of a
//! Rowlock client: the same queue, the same tagged writes, the same fencing tokens. Any node can serve any
//! request: the secret (session id and password) authorizes the request, and the node acts with the session's
//! present attachment. A node reattaches the session only to begin a new page of attempts (`page.rs`);
//! pending requests of the session continue.
//!
//! Must never do: keep a lease alive. Only a request of the lease's client is a keepalive.

mod ask;
mod call;
mod election;
mod forced;
mod lease;
mod lock;
mod pace;
mod page;
mod refusal;
mod request_id;
mod session;
mod several;
mod shares;
mod state_lock;
mod watch;
mod znode;

use std::net::SocketAddr;
use std::sync::Arc;

use rowlock_env::time;
use rowlock_proto::acl::Id;
use rowlock_types::limits::{API_WAITS_MAX, API_WATCHES_MAX};
use tokio::sync::Semaphore;

use crate::access::lock_feed::LockFeed;
use crate::access::report::Reports;
use crate::node::trace::TraceParent;
use crate::node::zk::ClientContext;
pub use ask::Questioned;
pub use election::{Led, election};
pub use lease::{Lease, Opened, Secret};
pub use lock::{For, LockName, Place, Standing, Wanted, Which};
pub use refusal::Refusal;
pub use several::{Part, Standings};
use shares::SlotPool;
pub use state_lock::{LockInfo, StateLock, Unlocked, state_lock};
pub use watch::{EventBatch, Watch};
pub use znode::{By, Change, Changed, Children, Consistency, Page, ZnodePath, acl_entry, acl_text};

/// Entry point for requests on leases, locks and znodes. `new` takes the node's context, the context of a
/// ZooKeeper connection.
pub struct Api {
    context: ClientContext,
    reports: Reports,
    /// Lock events for streams and elections.
    feed: Arc<LockFeed>,
    /// Slots for requests waiting for a lock.
    waits: SlotPool,
    /// Slots for streams of lock events.
    watches: SlotPool,
    /// Budget for znode bytes in transfer between clients and the node.
    bytes: Arc<Semaphore>,
    /// Pauses of all event streams.
    pace: Arc<pace::Pace>,
}

#[derive(Clone, Debug)]
pub struct Caller {
    pub address: SocketAddr,
    /// Proven identities, compared with ACLs.
    pub identities: Arc<[Id]>,
    /// Trace of the request, copied into log lines and audit records.
    pub trace: Option<TraceParent>,
}

impl Api {
    /// Creates the API from a connection's view of the node, the node's reports and the feed of lock events.
    pub(crate) fn new(context: ClientContext, reports: Reports, feed: Arc<LockFeed>) -> Self {
        Self::bounded((context, reports, feed), API_WAITS_MAX)
    }

    fn bounded((context, reports, feed): (ClientContext, Reports, Arc<LockFeed>), waits: usize) -> Self {
        let (waits, watches) = (SlotPool::new(waits), SlotPool::new(API_WATCHES_MAX));
        Api { context, reports, feed, waits, watches, bytes: znode::all_bytes(), pace: Arc::default() }
    }

    /// Takes an invitation for a client to connect to the leader. Returns false if no invitation is left.
    pub fn invite(&self) -> bool {
        self.context.replica.invitations.take(time::now(), &self.context.metrics)
    }

    fn check_serving(&self) -> Result<(), Refusal> {
        let serving = self.context.status.borrow().serving;
        if serving { Ok(()) } else { Err(Refusal::NotServing) }
    }
}

#[cfg(test)]
mod tests;
