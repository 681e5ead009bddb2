//! Accepts HTTP connections: bounds their number and the duration of each. With all slots in use, the oldest
//! connection without a complete request head is closed in favor of the new connection. A probe sends its
//! request at once, so a probe always gets a response. Accepting never waits for a slot, so a flood cannot
//! fill the system's queue before a probe.
//!
//! Serves HTTP/1.1 on accepted connections. Each connection is a task behind the node's turnstile, so a flood
//! of requests leaves processor time to the node's own tasks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::limits::{
    HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX, HTTP_CONNECTIONS_OF_ADDRESS_MAX, HTTP_HEAD_MAX,
    HTTP_YIELD_AFTER,
};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::task::AtomicWaker;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rowlock_env::busy;
use rowlock_env::net::Listener;
use rowlock_env::task::{Shutdown, spawn};
use rowlock_env::time::{Instant, now};
use rowlock_env::turnstile::{Class, Turnstile};
use rowlock_metrics::Metrics;
use tokio::sync::mpsc;
use tower_service::Service as _;

use super::connection::{HttpConnection, SecureHttp, Visitor};

/// Limits of a [`BoundedListener`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub connections: usize,
    /// Connections per address, except loopback.
    pub of_address: usize,
    /// Longest time from the accept to the end of the request head.
    pub head: Duration,
    /// Longest time from the accept to the end of the connection; with `idle`, from the first byte of a
    /// request to the end of its response.
    pub life: Duration,
    /// Longest time between two requests of a connection. `None`: the connection carries one request.
    pub idle: Option<Duration>,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            connections: HTTP_CONNECTIONS_MAX,
            of_address: HTTP_CONNECTIONS_OF_ADDRESS_MAX,
            head: HTTP_HEAD_MAX,
            life: HTTP_CONNECTION_MAX,
            idle: None,
        }
    }
}

/// Listener with a bound for open connections.
pub(super) struct BoundedListener {
    inner: Listener,
    bounds: Bounds,
    slots: Arc<Mutex<Slots>>,
    metrics: Arc<Metrics>,
    secure: Option<Arc<SecureHttp>>,
}

impl BoundedListener {
    pub(super) fn new(
        inner: Listener,
        metrics: Arc<Metrics>,
        bounds: Bounds,
        secure: Option<Arc<SecureHttp>>,
    ) -> Self {
        BoundedListener { inner, bounds, slots: Arc::default(), metrics, secure }
    }

    /// Takes a slot. Returns `None` if the address has used its share, or if all slots carry recent requests.
    fn slot(&self, addr: IpAddr) -> Option<ConnectionSlot> {
        let mut slots = self.slots.lock();
        if slots.of_address(addr) >= self.bounds.of_address && !addr.is_loopback() {
            return None;
        }
        let has_room = slots.make_room(self.bounds.connections, now());
        has_room.then(|| slots.take(&self.slots, addr, now(), self.bounds))
    }

    /// Accepts the next connection that gets a slot.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn accept(&mut self) -> (HttpConnection, Visitor) {
        loop {
            let stream = self.inner.accept().await;
            let addr = stream.peer_addr();
            if let Some(slot) = self.slot(addr.ip().to_canonical()) {
                self.metrics.http_connections_total.inc();
                let visitor = Visitor::of(addr, slot.taken.clone());
                let secure = self.secure.as_deref();
                let connection = HttpConnection::new(stream, slot, self.bounds, secure, &visitor);
                return (connection, visitor);
            }
            busy::end_turn_if_over().await;
        }
    }
}

/// Open connections in the order of their accepts.
#[derive(Debug, Default)]
struct Slots {
    next: u64,
    taken: BTreeMap<u64, Arc<ConnectionState>>,
}

/// State of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    addr: IpAddr,
    pub(super) since: Instant,
    /// A request head is complete and its response is not.
    pub(super) has_request: AtomicBool,
    /// Idle between two requests.
    pub(super) is_idle: AtomicBool,
    /// Deadline of the connection's present phase.
    pub(super) ends: Mutex<Instant>,
    bounds: Bounds,
    pub(super) is_evicted: AtomicBool,
    pub(super) task: AtomicWaker,
}

impl ConnectionState {
    /// Begins a request with the time limit `life`.
    pub(super) fn begin_request(&self, life: Duration) {
        self.is_idle.store(false, Relaxed);
        self.has_request.store(true, Relaxed);
        *self.ends.lock() = now() + life;
    }

    /// Completes a request; with keep-alive, the idle time begins.
    pub(super) fn end_request(&self) {
        let Some(idle) = self.bounds.idle else { return };
        self.has_request.store(false, Relaxed);
        self.is_idle.store(true, Relaxed);
        *self.ends.lock() = now() + idle;
    }

    pub(super) fn life(&self) -> Duration {
        self.bounds.life
    }
}

impl Slots {
    fn of_address(&self, addr: IpAddr) -> usize {
        self.taken.values().filter(|taken| taken.addr == addr).count()
    }

    /// Frees a slot if all are in use, by closing one connection. Returns false if all connections carry
    /// recent requests.
    fn make_room(&mut self, most: usize, now: Instant) -> bool {
        if self.taken.len() < most {
            return true;
        }
        let idle = self.taken.iter().find(|(_, taken)| !taken.has_request.load(Relaxed));
        let is_ripe = |taken: &ConnectionState| now >= taken.since + HTTP_YIELD_AFTER;
        let ripe = || self.taken.iter().next().filter(|(_, taken)| is_ripe(taken));
        let Some((id, taken)) = idle.or_else(ripe) else { return false };
        taken.is_evicted.store(true, Relaxed);
        taken.task.wake();
        let id = *id;
        self.taken.remove(&id);
        true
    }

    fn take(
        &mut self,
        all: &Arc<Mutex<Slots>>,
        addr: IpAddr,
        since: Instant,
        bounds: Bounds,
    ) -> ConnectionSlot {
        let taken = ConnectionState {
            addr,
            since,
            has_request: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            ends: Mutex::new(since + bounds.head.min(bounds.life)),
            bounds,
            is_evicted: AtomicBool::new(false),
            task: AtomicWaker::new(),
        };
        let (id, taken) = (self.next, Arc::new(taken));
        self.next += 1;
        self.taken.insert(id, taken.clone());
        ConnectionSlot { id, taken, all: all.clone() }
    }
}

/// Slot of an open connection.
pub(super) struct ConnectionSlot {
    id: u64,
    pub(super) taken: Arc<ConnectionState>,
    all: Arc<Mutex<Slots>>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.all.lock().taken.remove(&self.id);
    }
}

/// Accepts connections until `shutdown`, then waits for pending requests. The listener's deadlines bound this
/// wait.
pub(super) async fn serve_connections(
    mut listener: BoundedListener,
    routes: Router,
    (turnstile, class): (Turnstile, Class),
    shutdown: Shutdown,
) {
    let (alive, mut ended) = mpsc::channel::<()>(1);
    loop {
        let (connection, visitor) = tokio::select! {
            biased;
            () = shutdown.wait() => break,
            accepted = listener.accept() => accepted,
        };
        let served = serve_one(connection, visitor, routes.clone(), shutdown.clone());
        let alive = alive.clone();
        let connection = async move {
            served.await;
            drop(alive);
        };
        // The task needs no handle: `ended` reports its end.
        drop(spawn("http-connection", turnstile.turns(class, connection)));
        busy::end_turn_if_over().await;
    }
    drop((listener, alive));
    // No task sends a message: `recv` returns `None` after the last task has ended.
    let _: Option<()> = ended.recv().await;
}

async fn serve_one(connection: HttpConnection, visitor: Visitor, routes: Router, shutdown: Shutdown) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(visitor.clone()));
        routes.clone().call(request.map(Body::new))
    });
    let mut served = pin!(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
    let result = tokio::select! {
        biased;
        result = served.as_mut() => result,
        () = shutdown.wait() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::trace!(%error, "an HTTP connection ended early");
    }
}

/// Yields to other tasks between two requests if the task's turn is over.
pub(super) async fn end_turn(request: Request, next: Next) -> Response {
    busy::end_turn_if_over().await;
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_idle_connection_yields_before_requests() {
        let all = Arc::new(Mutex::new(Slots::default()));
        let (begin, addr) = (now(), IpAddr::from([10, 0, 0, 1]));
        let take = |since| all.lock().take(&all, addr, since, Bounds::default());
        let (asked, idle, later) =
            (take(begin), take(begin + HTTP_YIELD_AFTER), take(begin + HTTP_YIELD_AFTER));
        asked.taken.has_request.store(true, Relaxed);
        let gives_way = |slot: &ConnectionSlot| slot.taken.is_evicted.load(Relaxed);
        assert!(all.lock().make_room(4, begin));
        assert_eq!([&asked, &idle, &later].map(gives_way), [false, false, false]);
        assert!(all.lock().make_room(3, begin));
        assert_eq!([&asked, &idle, &later].map(gives_way), [false, true, false]);
        assert_eq!(all.lock().of_address(addr), 2);
        later.taken.has_request.store(true, Relaxed);
        let ripe = begin + HTTP_YIELD_AFTER;
        assert!(!all.lock().make_room(2, ripe - Duration::from_millis(1)), "both requests have just come");
        assert!(all.lock().make_room(2, ripe));
        assert_eq!([&asked, &later].map(gives_way), [true, false]);
        drop((asked, idle, later));
        assert_eq!(all.lock().of_address(addr), 0);
    }

    #[tokio::test]
    async fn connections_per_address_are_bounded_except_loopback() {
        let inner = Listener::bind("127.0.0.1:0").await.unwrap();
        let bounds = Bounds { connections: 64, of_address: 2, ..Bounds::default() };
        let listener = BoundedListener::new(inner, Arc::default(), bounds, None);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (first, second) = (listener.slot(one), listener.slot(one));
        assert!(first.is_some() && second.is_some());
        assert!(listener.slot(one).is_none());
        assert!(listener.slot(other).is_some());
        let mut own = Vec::new();
        for _ in 0..10 {
            own.push(listener.slot(IpAddr::from([127, 0, 0, 1])).expect("loopback is free"));
        }
        drop(first);
        assert!(listener.slot(one).is_some());
    }
}
