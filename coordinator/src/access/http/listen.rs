//! Accepts HTTP connections, a bounded number of them, each for a bounded time. Where all places are taken,
//! the oldest connection whose request is not here yet gives way: a probe sends its request at once, so it is
//! always answered. Accepting never waits for a place, so a flood cannot fill the system's queue in front of
//! a probe.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use rowlock_env::busy;
use rowlock_env::net::Listener;
use rowlock_env::time::{Instant, now};
use rowlock_types::limits::{
    HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX, HTTP_CONNECTIONS_OF_ADDRESS_MAX, HTTP_HEAD_MAX,
    HTTP_YIELD_AFTER,
};
use rowlock_types::metrics::Metrics;

use super::connection::{HttpConnection, Visitor};
use super::secure::SecureHttp;

/// Limits of a [`BoundedListener`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub connections: usize,
    /// Connections of one address, except loopback.
    pub of_address: usize,
    /// From the accept to the end of the request's head.
    pub head: Duration,
    /// From the accept to the end; with `idle`, of one request, from its first byte.
    pub life: Duration,
    /// Between two requests of one connection. `None`: it carries one.
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

/// A listener that never has more than its number of connections open.
pub(super) struct BoundedListener {
    inner: Listener,
    bounds: Bounds,
    places: Arc<Mutex<Places>>,
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
        BoundedListener { inner, bounds, places: Arc::default(), metrics, secure }
    }

    /// Takes a place. None: this address has as many as it may have, or requests that have just come have
    /// them all.
    fn place(&self, addr: IpAddr) -> Option<ConnectionSlot> {
        let mut places = self.places.lock();
        if places.of_address(addr) >= self.bounds.of_address && !addr.is_loopback() {
            return None;
        }
        let has_room = places.make_room(self.bounds.connections, now());
        has_room.then(|| places.take(&self.places, addr, now(), self.bounds))
    }

    /// The next connection that has a place. Cancel safe.
    pub(super) async fn accept(&mut self) -> (HttpConnection, Visitor) {
        loop {
            let stream = self.inner.accept().await;
            let addr = stream.peer_addr();
            if let Some(place) = self.place(addr.ip().to_canonical()) {
                self.metrics.http_connections_total.inc();
                let visitor = Visitor::of(addr, place.taken.clone());
                let secure = self.secure.as_deref();
                let connection = HttpConnection::new(stream, place, self.bounds, secure, &visitor);
                return (connection, visitor);
            }
            self.metrics.http_connections_refused_total.inc();
            busy::end_turn_if_over().await;
        }
    }
}

/// The open connections, in the order in which they came.
#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Arc<Taken>>,
}

/// State of one connection.
#[derive(Debug)]
pub(super) struct Taken {
    addr: IpAddr,
    pub(super) since: Instant,
    /// The head of a request is here, and its answer is not.
    pub(super) asked: AtomicBool,
    /// A request has been answered, and nothing of another one is here.
    pub(super) rests: AtomicBool,
    /// When it ends, unless something happens before.
    pub(super) ends: Mutex<Instant>,
    bounds: Bounds,
    pub(super) gives_way: AtomicBool,
    pub(super) task: AtomicWaker,
}

impl Taken {
    /// A request begins that may take so long.
    pub(super) fn begins(&self, life: Duration) {
        self.rests.store(false, Relaxed);
        self.asked.store(true, Relaxed);
        *self.ends.lock() = now() + life;
    }

    /// It is answered; there may be another one.
    pub(super) fn answered(&self) {
        let Some(idle) = self.bounds.idle else { return };
        self.asked.store(false, Relaxed);
        self.rests.store(true, Relaxed);
        *self.ends.lock() = now() + idle;
    }

    /// Returns the time limit of one request.
    pub(super) fn life(&self) -> Duration {
        self.bounds.life
    }
}

impl Places {
    fn of_address(&self, addr: IpAddr) -> usize {
        self.taken.values().filter(|taken| taken.addr == addr).count()
    }

    /// Makes one connection end if all places are taken. False: the requests of all have just come.
    fn make_room(&mut self, most: usize, now: Instant) -> bool {
        if self.taken.len() < most {
            return true;
        }
        let idle = self.taken.iter().find(|(_, taken)| !taken.asked.load(Relaxed));
        let is_ripe = |taken: &Taken| now >= taken.since + HTTP_YIELD_AFTER;
        let ripe = || self.taken.iter().next().filter(|(_, taken)| is_ripe(taken));
        let Some((id, taken)) = idle.or_else(ripe) else { return false };
        taken.gives_way.store(true, Relaxed);
        taken.task.wake();
        let id = *id;
        self.taken.remove(&id);
        true
    }

    fn take(
        &mut self,
        all: &Arc<Mutex<Places>>,
        addr: IpAddr,
        since: Instant,
        bounds: Bounds,
    ) -> ConnectionSlot {
        let taken = Taken {
            addr,
            since,
            asked: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            ends: Mutex::new(since + bounds.head.min(bounds.life)),
            bounds,
            gives_way: AtomicBool::new(false),
            task: AtomicWaker::new(),
        };
        let (id, taken) = (self.next, Arc::new(taken));
        self.next += 1;
        self.taken.insert(id, taken.clone());
        ConnectionSlot { id, taken, all: all.clone() }
    }
}

/// The place of an open connection.
pub(super) struct ConnectionSlot {
    id: u64,
    pub(super) taken: Arc<Taken>,
    all: Arc<Mutex<Places>>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.all.lock().taken.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_without_a_request_gives_way_at_once_and_requests_after_a_while() {
        let all = Arc::new(Mutex::new(Places::default()));
        let (begin, addr) = (now(), IpAddr::from([10, 0, 0, 1]));
        let take = |since| all.lock().take(&all, addr, since, Bounds::default());
        let (asked, idle, later) =
            (take(begin), take(begin + HTTP_YIELD_AFTER), take(begin + HTTP_YIELD_AFTER));
        asked.taken.asked.store(true, Relaxed);
        let gives_way = |place: &ConnectionSlot| place.taken.gives_way.load(Relaxed);
        assert!(all.lock().make_room(4, begin));
        assert_eq!([&asked, &idle, &later].map(gives_way), [false, false, false]);
        assert!(all.lock().make_room(3, begin));
        assert_eq!([&asked, &idle, &later].map(gives_way), [false, true, false]);
        assert_eq!(all.lock().of_address(addr), 2);
        later.taken.asked.store(true, Relaxed);
        let ripe = begin + HTTP_YIELD_AFTER;
        assert!(!all.lock().make_room(2, ripe - Duration::from_millis(1)), "both requests have just come");
        assert!(all.lock().make_room(2, ripe));
        assert_eq!([&asked, &later].map(gives_way), [true, false]);
        drop((asked, idle, later));
        assert_eq!(all.lock().of_address(addr), 0);
    }

    #[tokio::test]
    async fn connections_of_one_address_are_bounded_and_those_of_loopback_are_not() {
        let inner = Listener::bind("127.0.0.1:0").await.unwrap();
        let bounds = Bounds { connections: 64, of_address: 2, ..Bounds::default() };
        let listener = BoundedListener::new(inner, Arc::default(), bounds, None);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (first, second) = (listener.place(one), listener.place(one));
        assert!(first.is_some() && second.is_some());
        assert!(listener.place(one).is_none());
        assert!(listener.place(other).is_some());
        let mut own = Vec::new();
        for _ in 0..10 {
            own.push(listener.place(IpAddr::from([127, 0, 0, 1])).expect("loopback is free"));
        }
        drop(first);
        assert!(listener.place(one).is_some());
    }
}
