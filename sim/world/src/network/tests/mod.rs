//! The network on a minimal heart: a queue of events, and futures that are polled only when they were woken.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::world::{Conduit, Port};

use super::{Connecting, Network};
use crate::heart::{Event, Heart};
use crate::rng::Rng;
use crate::time::{HostId, Nanos};
use crate::trace::Trace;

mod faults;
mod ports;
mod processes;
mod record;
mod soak;
mod streams;

const A: HostId = HostId(0);
const B: HostId = HostId(1);
const C: HostId = HostId(2);

struct Queue {
    now: AtomicU64,
    serial: AtomicU64,
    events: Mutex<BTreeMap<(Nanos, u64), Event>>,
    trace: Trace,
}

impl Heart for Queue {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    fn at(&self, when: Nanos, event: Event) {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.events.lock().insert((when.max(self.now()), serial), event);
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }
}

/// A heart, a network, and three hosts `a`, `b`, `c`: 10.0.0.1 and so on.
struct Earth {
    heart: Arc<Queue>,
    net: Network,
}

impl Earth {
    fn new(seed: u64) -> Earth {
        Earth::with_trace(seed, Trace::new(false))
    }

    fn with_trace(seed: u64, trace: Trace) -> Earth {
        let (now, serial, events) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(BTreeMap::new()));
        let heart = Arc::new(Queue { now, serial, events, trace });
        let weak: Weak<Queue> = Arc::downgrade(&heart);
        let net = Network::new(weak, Rng::new(seed));
        for (host, name) in [(A, "a"), (B, "b"), (C, "c")] {
            net.add_host(host, name, Ipv4Addr::new(10, 0, 0, host.0 as u8 + 1));
        }
        Earth { heart, net }
    }

    fn now(&self) -> Nanos {
        self.heart.now()
    }

    /// Lets the next event happen, if there is one until then.
    fn step(&self, until: Nanos) -> bool {
        let next = {
            let mut events = self.heart.events.lock();
            let due = events.first_key_value().is_some_and(|((when, _), _)| *when <= until);
            if due { events.pop_first() } else { None }
        };
        let Some(((when, _), event)) = next else { return false };
        self.heart.now.store(when.0, Ordering::Relaxed);
        event();
        true
    }

    fn run_for(&self, time: Duration) {
        let until = self.now() + time;
        while self.step(until) {}
        self.heart.now.store(until.0, Ordering::Relaxed);
    }

    /// Polls, first at once and then whenever it was woken, for a minute or two at most.
    fn wait<T>(&self, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        self.wait_for(Duration::from_secs(200), poll).expect("it becomes ready")
    }

    fn wait_for<T>(&self, time: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
        let until = self.now() + time;
        let (bell, waker) = bell();
        loop {
            let heard = bell.count();
            if let Poll::Ready(value) = poll(&mut Context::from_waker(&waker)) {
                return Some(value);
            }
            while bell.count() == heard {
                if !self.step(until) {
                    self.heart.now.store(until.0, Ordering::Relaxed);
                    return None;
                }
            }
        }
    }

    fn connected(&self, mut connecting: Connecting) -> io::Result<Arc<dyn Conduit>> {
        self.wait(|cx| connecting.as_mut().poll(cx))
    }

    fn connect(&self, from: HostId, addr: &str) -> io::Result<Arc<dyn Conduit>> {
        self.connected(self.net.connect(from, addr, Duration::from_secs(5)))
    }

    fn accept(&self, port: &Arc<dyn Port>) -> Arc<dyn Conduit> {
        self.wait(|cx| port.poll_accept(cx)).expect("accepts")
    }

    /// A connection from `a` to `b`.
    fn pair(&self) -> (Arc<dyn Conduit>, Arc<dyn Conduit>) {
        let port = self.net.listen(B, "0.0.0.0:0").expect("listens");
        let client = self.connect(A, &format!("b:{}", port.local_addr().port())).expect("connects");
        (client, self.accept(&port))
    }

    fn write(&self, to: &Arc<dyn Conduit>, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.wait(|cx| to.poll_write(cx, rest))?;
            rest = &rest[written..];
        }
        Ok(())
    }

    fn read(&self, from: &Arc<dyn Conduit>) -> io::Result<Vec<u8>> {
        let mut buf = [0; 4096];
        let read = self.wait(|cx| from.poll_read(cx, &mut buf))?;
        Ok(buf[..read].to_vec())
    }

    fn read_exactly(&self, from: &Arc<dyn Conduit>, bytes: usize) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < bytes {
            let piece = self.read(from)?;
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            all.extend(piece);
        }
        Ok(all)
    }
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Bell {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn bell() -> (Arc<Bell>, Waker) {
    let bell = Arc::new(Bell::default());
    (bell.clone(), Waker::from(bell))
}

fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
    result.err().map(|error| error.kind())
}
