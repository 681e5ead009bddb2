//! [`Api`]: the node, as the requests on leases, locks and znodes need it, with the bounds that all its
//! clients share; the [`Caller`] of a request and the reasons for its [`Refusal`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::limits::{API_ANSWERS_MAX_BYTES, API_WAITS_MAX, API_WATCH_SHARE, API_WATCHES_MAX};
use parking_lot::Mutex;
use rowlock_env::process::{ThreadTimes, thread_times};
use rowlock_env::rate::host;
use rowlock_env::time::{self, Instant};
use rowlock_env::{busy, decides};
use rowlock_proto::acl::Id;
use rowlock_proto::lock::Party;
use rowlock_proto::{ErrorCode, Right};
use tokio::sync::Semaphore;

use crate::access::lock_feed::LockFeed;
use crate::access::report::Reports;
use crate::node::trace::TraceParent;
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

/// Client of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    pub address: SocketAddr,
    /// Proven identities, compared with ACLs.
    pub identities: Arc<[Id]>,
    /// Trace of the request, copied into log lines and audit records.
    pub trace: Option<TraceParent>,
}

/// Refusal of a request. Except for [`Refusal::Unknown`], the request had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Bad(String),
    /// Unknown lease: expired or closed. All its locks are free.
    #[error("the lease is over: its locks are released and its queue positions deleted")]
    LeaseOver,
    #[error("wrong secret for this lease")]
    WrongSecret,
    /// Denied by an ACL.
    #[error("the ACL does not permit this")]
    NotPermitted,
    /// Denied by the rules for the lock.
    #[error("{}", .0.missing_on("this lock"))]
    NoRight(Right),
    /// Waiting would complete a circle of owners waiting for each other.
    #[error("deadlock detected: waiting would close a circle of owners")]
    Deadlock(Vec<Party>),
    /// No znode at this path, or no parent for a create.
    #[error("there is no such znode, or no parent for a create")]
    NoZnode,
    /// Conflict with an existing znode; nothing was changed.
    #[error("{0}")]
    InTheWay(&'static str),
    /// Version of the znode differs from the expected version.
    #[error("the znode has another version")]
    OtherVersion,
    /// Fencing token of the write no longer holds the lock.
    #[error("the token no longer holds the lock, and a later holder may have written: nothing was changed")]
    Stale,
    /// The same, and the outcomes of earlier copies ended with the lease.
    #[error(
        "the token no longer holds the lock, and its lease is over: an earlier copy may have taken effect"
    )]
    StaleCopy,
    /// Number of permits of the lock differs, or is less than the requested permits.
    #[error("the lock has {0} permits")]
    Limit(u32),
    /// Deduplication memory of the lease is full.
    #[error("no memory for another request_id of this lease: open a new lease")]
    Spent,
    #[error("a quota, the queue of the lock, or the cluster's memory is full: make room, then retry")]
    NoRoom,
    /// Bound of this node.
    #[error("{0}; retry later or at another node")]
    Full(&'static str),
    /// Longest time in seconds until new sessions are accepted.
    #[error("the cluster was restored or lost power: retry in {0} s, when all former clients have given up")]
    Restored(u64),
    #[error("this node is not in contact with a quorum; retry later or at another node")]
    NotServing,
    #[error("unknown outcome: repeat the request with the same request_id, here or at another node")]
    Unknown,
}

impl Refusal {
    pub(super) fn of(code: ErrorCode) -> Refusal {
        match code {
            ErrorCode::SessionExpired => Refusal::LeaseOver,
            ErrorCode::SessionMoved => Refusal::Unknown,
            ErrorCode::NoAuth => Refusal::NotPermitted,
            ErrorCode::NoRight(right) => Refusal::NoRight(right),
            ErrorCode::ThrottledOp => Refusal::Spent,
            ErrorCode::QuotaExceeded => Refusal::NoRoom,
            ErrorCode::NoNode => Refusal::NoZnode,
            ErrorCode::NodeExists => Refusal::InTheWay("there is a znode at this path"),
            ErrorCode::NotEmpty => Refusal::InTheWay("the znode has children"),
            ErrorCode::NoChildrenForEphemerals => Refusal::InTheWay("an ephemeral znode has no children"),
            ErrorCode::BadVersion => Refusal::OtherVersion,
            ErrorCode::InvalidAcl => Refusal::Bad("the ACL is not valid".to_owned()),
            ErrorCode::BadArguments => Refusal::Bad(
                "the request is not valid, its request_id was used before, or the znode of a lock with \
                 permits holds other data"
                    .to_owned(),
            ),
            other => Refusal::Bad(format!("the cluster refused the request: {other:?}")),
        }
    }

    /// Returns whether retrying later may succeed.
    pub fn is_passing(&self) -> bool {
        use Refusal::{Full, NoRoom, NotServing, Restored, Unknown};
        matches!(self, NoRoom | Full(_) | Restored(_) | NotServing | Unknown)
    }
}

/// Fraction of the slots for one client: one in this many.
const SHARE: usize = 4;

/// Pool of slots. Clones share the pool.
///
/// Slots are for long requests (long polls, streams): a bound for all clients of a node, and a share of the
/// bound for each client.
#[derive(Clone)]
pub(super) struct SlotPool {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Used slots by client. Bounded by the number of slots.
    by_client: BTreeMap<String, usize>,
}

/// One used slot. Dropping frees the slot.
pub(super) struct Slot {
    pool: SlotPool,
    client: Option<String>,
}

impl SlotPool {
    pub(super) fn new(most: usize) -> SlotPool {
        SlotPool { most, taken: Arc::default() }
    }

    /// Takes a slot. Returns `None` if all slots or the caller's share are in use.
    pub(super) fn take(&self, caller: &Caller) -> Option<Slot> {
        let client = client(caller);
        let mut taken = self.taken.lock();
        let own = client.as_ref().and_then(|client| taken.by_client.get(client)).copied().unwrap_or_default();
        if taken.all >= self.most || (client.is_some() && own >= self.most / SHARE) {
            return None;
        }
        taken.all += 1;
        if let Some(client) = &client {
            taken.by_client.insert(client.clone(), own + 1);
        }
        Some(Slot { pool: self.clone(), client })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.pool.taken.lock();
        assert!(taken.all > 0, "a freed slot was taken");
        taken.all -= 1;
        let Some(client) = self.client.take() else { return };
        match taken.by_client.get_mut(&client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.by_client.remove(&client)),
        }
    }
}

/// Returns the client whose share a request counts against: the proven identity, else the address (for IPv6
/// its /64). Returns `None` for loopback: a local proxy serves many clients, so no share applies.
fn client(caller: &Caller) -> Option<String> {
    if let Some(proven) = caller.identities.iter().find(|id| id.scheme != "ip") {
        return Some(format!("{}:{}", proven.scheme, proven.id));
    }
    let host = host(caller.address.ip());
    (!host.is_loopback()).then(|| host.to_string())
}

/// Shortest time between two reads of the thread's times.
const READ_EVERY: Duration = Duration::from_millis(200);
/// Least counted work for a new stretch. With less work, the previous stretch remains.
const WORK_MIN: Duration = Duration::from_millis(1);
/// Upper bound of the stretch.
const STRETCH_MAX: f64 = 40.0;
/// Upper bound of a pause. A stream too slow for this pause gets a gap.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Pauses of the streams of lock events. The pauses limit all streams together to a fifth of the processor
/// time of the node's thread.
///
/// Each batch counts as a fixed amount of work ([`rowlock_env::busy`]). From time to time the thread's
/// counted work is compared with the thread's running time and its wait for a processor; the ratio of time to
/// work, the stretch, multiplies the pause.
#[derive(Default)]
pub(super) struct Pace {
    measured: Mutex<Option<Measured>>,
}

struct Measured {
    at: Instant,
    thread: ThreadId,
    times: ThreadTimes,
    worked: Duration,
    /// Ratio of the measured time to the counted work.
    stretch: f64,
}

impl Pace {
    /// Returns the pause of one of `streams` streams after a batch of this counted work.
    pub(super) fn pause(&self, work: Duration, streams: usize) -> Duration {
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        (work * (API_WATCH_SHARE - 1)).saturating_mul(streams).mul_f64(self.stretch()).min(PAUSE_MAX)
    }

    fn stretch(&self) -> f64 {
        let (mut measured, now) = (self.measured.lock(), time::now());
        if let Some(known) = measured.as_ref().filter(|known| now < known.at + READ_EVERY) {
            return known.stretch;
        }
        let Some(times) = thread_times() else { return 1.0 };
        let (thread, worked) = (thread::current().id(), busy::done());
        let stretch = match measured.as_ref() {
            Some(before) if before.thread == thread => {
                let work = worked.saturating_sub(before.worked);
                let took = times.total().saturating_sub(before.times.total());
                stretch(work, took).unwrap_or(before.stretch)
            }
            Some(of_other) => of_other.stretch,
            None => 1.0,
        };
        *measured = Some(Measured { at: now, thread, times, worked, stretch });
        stretch
    }
}

/// Returns the ratio of time to work. `None`: too little work for a ratio.
fn stretch(work: Duration, took: Duration) -> Option<f64> {
    (work >= WORK_MIN).then(|| (took.as_secs_f64() / work.as_secs_f64()).clamp(1.0, STRETCH_MAX))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rowlock_proto::acl::Id;

    use super::*;

    fn caller(ip: &str, proven: Option<&str>) -> Caller {
        let id = |scheme: &str, id: &str| Id { scheme: scheme.to_owned(), id: id.to_owned() };
        let identities = [id("ip", ip)].into_iter().chain(proven.map(|name| id("token", name))).collect();
        Caller { address: SocketAddr::new(ip.parse().unwrap(), 1), identities, trace: None }
    }

    #[test]
    fn one_client_takes_at_most_a_quarter_of_the_slots() {
        let pool = SlotPool::new(8);
        let take = |ip, proven| pool.take(&caller(ip, proven));
        let mut one: Vec<_> = (0..8).map_while(|_| take("10.0.0.1", None)).collect();
        assert_eq!(one.len(), 2);
        let token: Vec<_> = (0..8).map_while(|_| take("10.0.0.1", Some("ci"))).collect();
        assert_eq!(token.len(), 2, "what is proven has a share of its own");
        assert!(take("10.0.0.2", Some("ci")).is_none(), "wherever it is shown");
        one.pop();
        assert!(
            take("10.0.0.1", None)
                .is_some_and(|again| take("10.0.0.1", None).is_none() && again.client.is_some())
        );
        let rest: Vec<_> = (0..8).map_while(|_| take("127.0.0.1", None)).collect();
        assert_eq!(rest.len(), 5);
        assert!(take("10.0.0.3", None).is_none());
        drop((one, token, rest));
        assert!(pool.taken.lock().by_client.is_empty() && pool.taken.lock().all == 0);
        let host: Vec<_> = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|ip| take(ip, None)).into();
        assert_eq!(host.iter().flatten().count(), 2, "a /64 is one host");
    }

    #[test]
    fn pause_grows_with_streams_and_measured_time_of_work() {
        let ms = Duration::from_millis;
        assert_eq!(stretch(ms(0), ms(9)), None);
        assert_eq!(stretch(ms(50), ms(40)), Some(1.0));
        assert_eq!(stretch(ms(50), ms(200)), Some(4.0));
        assert_eq!(stretch(ms(1), ms(10_000)), Some(STRETCH_MAX));
        let pace = Pace::default();
        let pause = |streams| pace.pause(Duration::from_micros(10), streams);
        assert!(pause(10) >= Duration::from_micros(400));
        let (at, thread, worked) = (time::now() + ms(60_000), thread::current().id(), ms(1));
        let times = ThreadTimes { ran: ms(1), waited: ms(3) };
        *pace.measured.lock() = Some(Measured { at, thread, times, worked, stretch: 4.0 });
        assert_eq!(pause(10), Duration::from_micros(1_600));
        assert_eq!(pause(1_000_000), PAUSE_MAX);
    }
}
