//! Locks for clients that have nothing but HTTP: what decides about leases, locks and znodes. It knows
//! neither HTTP nor sockets; `http/api` is a thin skin on it.
//!
//! A *REST lease* (docs/rest.md) is an ordinary session, and a request on a lock is the command that a client
//! of ours sends: the same queue, the same tagged writes, the same fencing tokens. Any node can serve any
//! request, since the client with the secret (session id and password) acts by the attachment that the
//! session has. It is attached again only to begin a page of attempts (`page.rs`), and requests under way
//! go on.
//!
//! Must never do: keep a lease alive. Only a request of its client is a sign of life.

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

use crate::lock_feed::LockFeed;
use crate::report::Reports;
use crate::trace::TraceParent;
use crate::zk::ClientContext;
pub use ask::Questioned;
pub use election::{Led, election};
pub use lease::{Lease, Opened, Secret};
pub use lock::{For, LockName, Place, Standing, Wanted, Which};
pub use refusal::Refusal;
pub use several::{Part, Standings};
use shares::Places;
pub use state_lock::{LockInfo, StateLock, Unlocked, state_lock};
pub use watch::{Told, Watch};
pub use znode::{By, Change, Changed, Children, Consistency, Page, ZnodePath, acl_entry, acl_text};

/// The door for requests on leases and locks.
pub struct Api {
    context: ClientContext,
    reports: Reports,
    /// What happens to locks, for streams and elections.
    feed: Arc<LockFeed>,
    /// Places of requests that wait for a lock.
    waits: Places,
    /// Places of streams of lock events.
    watches: Places,
    /// Bytes of znodes that are on their way from and to clients.
    bytes: Arc<Semaphore>,
    /// Pauses of the streams of lock events.
    pace: Arc<pace::Pace>,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    pub address: SocketAddr,
    /// Proven identities, for ACLs.
    pub identities: Arc<[Id]>,
    /// The trace that the request belongs to, for what is told of it.
    pub trace: Option<TraceParent>,
}

impl Api {
    /// Takes what an ordinary connection needs of its node, the node's reports and the feed of its locks.
    pub(crate) fn new(context: ClientContext, reports: Reports, feed: Arc<LockFeed>) -> Self {
        Self::bounded((context, reports, feed), API_WAITS_MAX)
    }

    fn bounded((context, reports, feed): (ClientContext, Reports, Arc<LockFeed>), waits: usize) -> Self {
        let (waits, watches) = (Places::new(waits), Places::new(API_WATCHES_MAX));
        Api { context, reports, feed, waits, watches, bytes: znode::all_bytes(), pace: Arc::default() }
    }

    /// Uses up an invitation to the leader, if there is one.
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
