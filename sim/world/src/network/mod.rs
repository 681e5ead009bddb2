//! The network between the hosts: streams with latency, cuts, loss, and machines that stop.
//!
//! The map, from a process's handles down to the links:
//! - `handles`: ends of connections, listening sockets, attempts to connect (what `rowlock_env::net` uses);
//! - `state`: all of them, and what happens to machines and links; `dial`: how a connection begins; `ports`:
//!   addresses;
//! - `conn`: one connection, as the two kernels see it, with `socket` (what its processes do) and `endings`
//!   (how it breaks); `flow`: one direction of it;
//! - [`links`](Delay), `wire`: latency, loss, cuts, power; `effects`: the effects of a call outside.
//!
//! It behaves like TCP as a process sees it: bytes of one direction keep their order, nothing is duplicated,
//! and lost segments are sent again, so that a cut link delays and only a long one breaks. An acknowledgement
//! is not simulated as a segment: a sender learns at once what was read, unless the way back is cut.
//!
//! Invariant: only one lock, which is never held while a waker, the heart, or other code runs.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::world::{Boxed, Conduit, Port};

use crate::heart::Heart;
use crate::rng::Rng;
use crate::time::HostId;

mod conn;
mod dial;
mod effects;
mod endings;
mod flow;
mod handles;
mod links;
mod ports;
mod socket;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod wire;

pub use links::Delay;
pub use stats::NetworkStats;

use effects::Effects;
use state::State;

/// Names a message for the record: the server's port, whether it goes there, and what one call wrote.
pub type Labeler = fn(port: u16, to_server: bool, bytes: &[u8]) -> Option<String>;

/// A connection to come.
pub type Connecting = Boxed<io::Result<Arc<dyn Conduit>>>;

/// The network of a world. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

struct Shared {
    // The heart owns the network, not the other way round.
    heart: Weak<dyn Heart>,
    state: Mutex<State>,
}

impl Network {
    /// A network without hosts. All its randomness comes from `rng`.
    pub fn new(heart: Weak<dyn Heart>, rng: Rng) -> Network {
        Network { shared: Arc::new(Shared { heart, state: Mutex::new(State::new(rng)) }) }
    }

    /// From now on its randomness comes from `rng`.
    pub fn choose_anew(&self, rng: Rng) {
        self.shared.state.lock().wire.rng = rng;
    }

    /// Does something with the lock held, and what it brings about after. `None`: the world is over.
    fn with<T>(&self, f: impl FnOnce(&mut State, &mut Effects<'_>) -> T) -> Option<T> {
        let heart = self.shared.heart.upgrade()?;
        let mut fx = Effects::new(&*heart);
        let (result, due) = {
            let mut state = self.shared.state.lock();
            let result = f(&mut state, &mut fx);
            (result, std::mem::take(&mut state.wire.due_calls))
        };
        self.carry_out(fx, &*heart);
        due.into_iter().for_each(|call| call());
        Some(result)
    }

    fn carry_out(&self, fx: Effects<'_>, heart: &dyn Heart) {
        let (woken, dropped, deeds) = fx.finish();
        for (when, deed) in deeds {
            let network = self.clone();
            let event = move || {
                network.with(|state, fx| state.happen(when, deed, fx));
            };
            heart.at(when, Box::new(event));
        }
        drop(dropped);
        for waker in woken {
            waker.wake();
        }
    }

    /// A machine with power, of a name and address of its own.
    pub fn add_host(&self, host: HostId, name: &str, ip: Ipv4Addr) {
        let mut state = self.shared.state.lock();
        state.ports.add(host, name, ip);
        state.wire.links.add(host);
    }

    /// Connects a process on `from` to `name:port` or `ip:port` within `timeout` of true time.
    pub fn connect(&self, from: HostId, addr: &str, timeout: Duration) -> Connecting {
        match self.with(|state, fx| state.dial(from, addr, timeout, fx)) {
            Some(Ok(attempt)) => handles::dial(self, attempt, addr, timeout),
            Some(Err(error)) => Box::pin(std::future::ready(Err(error))),
            None => Box::pin(std::future::ready(Err(io::ErrorKind::NotConnected.into()))),
        }
    }

    /// Listens for a process on `host`.
    pub fn listen(&self, host: HostId, addr: &str) -> io::Result<Arc<dyn Port>> {
        let (listener, local) = self.shared.state.lock().ports.listen(host, addr)?;
        Ok(handles::listening(self, listener, local))
    }

    /// The process of a host ended, however: its kernel closes its sockets. Call this before its tasks are
    /// dropped: otherwise they close their connections one by one, as a process does that stops by itself.
    pub fn process_died(&self, host: HostId) {
        self.forget_plan(host);
        self.with(|state, fx| state.process_died(host, fx));
    }

    /// A machine falls silent. Call this before its tasks are dropped: otherwise they close their
    /// connections.
    pub fn power_lost(&self, host: HostId) {
        self.forget_plan(host);
        self.with(|state, fx| state.power_lost(host, fx));
    }

    /// A machine has power again. It knows none of its connections: what arrives on them is answered with a
    /// reset.
    pub fn boot(&self, host: HostId) {
        self.with(|state, fx| state.boot(host, fx));
    }

    /// Calls `then` right after the `nth` message that the host sends from now on (1 is the next one), unless
    /// its process ends before. A later call takes the place of an earlier one.
    pub fn at_message(&self, host: HostId, nth: u64, then: Box<dyn FnOnce() + Send>) {
        assert!(nth > 0, "the next message is number 1");
        let earlier = self.shared.state.lock().wire.planned.insert(host, (nth, then));
        drop(earlier);
    }

    fn forget_plan(&self, host: HostId) {
        let planned = self.shared.state.lock().wire.planned.remove(&host);
        drop(planned);
    }

    /// The process of a host stands still. Its kernel does not: it takes data up to the window and
    /// connections up to the backlog. So nothing changes here; wakers are called as ever, and the executor
    /// keeps them for later.
    pub fn pause(&self, _host: HostId) {}

    pub fn resume(&self, _host: HostId) {}

    /// From now on nothing gets from one host to the other; the way back is not concerned.
    pub fn cut(&self, from: HostId, to: HostId) {
        self.with(|state, fx| state.set_cut(from, to, true, fx));
    }

    /// Ends a cut. What was sent meanwhile arrives once TCP tries again, within two seconds.
    pub fn join(&self, from: HostId, to: HostId) {
        self.with(|state, fx| state.set_cut(from, to, false, fx));
    }

    pub fn join_all(&self) {
        self.with(|state, fx| {
            for (from, to) in state.wire.links.cuts() {
                state.set_cut(from, to, false, fx);
            }
        });
    }

    /// Ends everything that was done to links: cuts, added latency, loss, distrust.
    pub fn heal_links(&self) {
        self.shared.state.lock().wire.links.unclog();
        self.join_all();
    }

    /// Whether connections between two hosts work in both directions, however slowly.
    pub fn is_open(&self, a: HostId, b: HostId) -> bool {
        let links = &self.shared.state.lock().wire.links;
        !links.is_cut(a, b) && !links.is_cut(b, a) && !links.distrusted(a, b)
    }

    /// The same, where nothing is added to the latency and no segment is lost.
    pub fn is_sound(&self, a: HostId, b: HostId) -> bool {
        let links = &self.shared.state.lock().wire.links;
        links.is_sound(a, b) && links.is_sound(b, a)
    }

    /// Adds to the latency of one link; [`Delay::NONE`] ends that.
    pub fn set_delay(&self, from: HostId, to: HostId, added: Delay) {
        self.shared.state.lock().wire.links.set_added(from, to, added);
    }

    /// This many of a thousand segments on this link get lost once: they and later ones are late by what TCP
    /// needs to notice.
    pub fn lose_segments(&self, from: HostId, to: HostId, per_mille: u32) {
        self.shared.state.lock().wire.links.set_loss(from, to, per_mille);
    }

    /// From now on `to` does not believe who `from` is, as when its certificate has expired: connections
    /// between them, begun by either, open and are broken at once. Those that exist stay.
    pub fn distrust(&self, from: HostId, to: HostId) {
        self.shared.state.lock().wire.links.set_distrusted(from, to, true);
    }

    pub fn trust(&self, from: HostId, to: HostId) {
        self.shared.state.lock().wire.links.set_distrusted(from, to, false);
    }

    /// Breaks all connections between two hosts; returns how many. Both sides know at once, or (seeded) one
    /// of them only when it next writes.
    pub fn reset_between(&self, a: HostId, b: HostId) -> usize {
        self.with(|state, fx| state.reset(|from, to| (from, to) == (a, b), fx)).unwrap_or(0)
    }

    /// The same for all connections of a host.
    pub fn reset_all(&self, host: HostId) -> usize {
        self.with(|state, fx| state.reset(|from, _| from == host, fx)).unwrap_or(0)
    }

    /// How many bytes of one direction of a connection may be under way or unread; 256 KiB unless set.
    pub fn set_window(&self, bytes: usize) {
        assert!(bytes > 0, "nothing could ever be written");
        self.shared.state.lock().wire.window = bytes;
    }

    /// The same for all connections of one host.
    pub fn set_window_of(&self, host: HostId, bytes: usize) {
        assert!(bytes > 0, "nothing could ever be written");
        self.shared.state.lock().wire.windows.insert(host, bytes);
    }

    /// Sets the labeler of messages in the record.
    pub fn set_labeler(&self, labeler: Labeler) {
        self.shared.state.lock().wire.labeler = Some(labeler);
    }

    /// The figures so far.
    pub fn counters(&self) -> NetworkStats {
        self.shared.state.lock().wire.stats
    }

    /// Connections and attempts to connect that exist: none once every process is gone and the wire is empty.
    pub fn open_connections(&self) -> usize {
        let state = self.shared.state.lock();
        state.conns.len() + state.attempts_open()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Network({:?})", self.counters())
    }
}
