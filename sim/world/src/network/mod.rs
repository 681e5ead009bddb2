//! Network between the hosts: streams with latency, cuts, loss, and machines that stop.
//!
//! The map, from a process's handles down to the links:
//! - `handles`: ends of connections, listening sockets, attempts to connect (used by `rowlock_env::net`);
//! - `state`: all connections, and events of machines and links; `dial`: setup of a connection; `ports`:
//!   addresses;
//! - `conn`: one connection, as seen by the two kernels, with `socket` (operations of its processes) and
//!   `endings` (early ends); `flow`: one direction;
//! - [`links`](Delay), `wire`: latency, loss, cuts, power; `effects`: the effects of a call outside.
//!
//! The network behaves like TCP as seen by a process: bytes of one direction keep their order, no bytes are
//! duplicated, and lost segments are repeated, so a cut link delays and only a long cut breaks.
//! Acknowledgements are not simulated as segments: a sender learns at once which bytes were read, unless the
//! way back is cut.
//!
//! Invariant: only one lock, never held while a waker, the heart, or other code runs.

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

/// Function that names a message for the record, from the server's port, the direction, and the bytes of one
/// write.
pub type Labeler = fn(port: u16, to_server: bool, bytes: &[u8]) -> Option<String>;

pub type Connecting = Boxed<io::Result<Arc<dyn Conduit>>>;

/// Network of a world. Clones share the network.
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
    /// Creates a network without hosts. All randomness comes from `rng`.
    pub fn new(heart: Weak<dyn Heart>, rng: Rng) -> Network {
        Network { shared: Arc::new(Shared { heart, state: Mutex::new(State::new(rng)) }) }
    }

    /// Draws all randomness from `rng` from now on.
    pub fn reseed(&self, rng: Rng) {
        self.shared.state.lock().wire.rng = rng;
    }

    /// Runs `f` under the lock, and its effects afterwards. `None`: the world has ended.
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
        let (woken, dropped, events) = fx.finish();
        for (when, event) in events {
            let network = self.clone();
            let event = move || {
                network.with(|state, fx| state.handle(when, event, fx));
            };
            heart.at(when, Box::new(event));
        }
        drop(dropped);
        for waker in woken {
            waker.wake();
        }
    }

    /// Adds a machine with power, and with a unique name and address.
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

    /// Opens a listening socket for a process on `host`.
    pub fn listen(&self, host: HostId, addr: &str) -> io::Result<Arc<dyn Port>> {
        let (listener, local) = self.shared.state.lock().ports.listen(host, addr)?;
        Ok(handles::listening(self, listener, local))
    }

    /// Handles the end of a host's process: its kernel closes its sockets. Call this before dropping its
    /// tasks: otherwise the tasks close their connections one by one, as in an orderly exit.
    pub fn process_died(&self, host: HostId) {
        self.forget_plan(host);
        self.with(|state, fx| state.process_died(host, fx));
    }

    /// Silences a machine. Call this before dropping its tasks: otherwise the tasks close their connections.
    pub fn power_lost(&self, host: HostId) {
        self.forget_plan(host);
        self.with(|state, fx| state.power_lost(host, fx));
    }

    /// Powers a machine on. Its kernel knows no earlier connection and answers their segments with a reset.
    pub fn boot(&self, host: HostId) {
        self.with(|state, fx| state.boot(host, fx));
    }

    /// Calls `then` right after the host's `nth` sent message from now (1 is the next one), unless its
    /// process ends earlier. A later call replaces an earlier one.
    pub fn at_message(&self, host: HostId, nth: u64, then: Box<dyn FnOnce() + Send>) {
        assert!(nth > 0, "the next message is number 1");
        let earlier = self.shared.state.lock().wire.planned.insert(host, (nth, then));
        drop(earlier);
    }

    fn forget_plan(&self, host: HostId) {
        let planned = self.shared.state.lock().wire.planned.remove(&host);
        drop(planned);
    }

    /// Pauses the process of a host. Its kernel continues: it accepts data up to the window and connections
    /// up to the backlog. So no state changes here; wakers are called as usual, and the executor keeps them
    /// for later.
    pub fn pause(&self, _host: HostId) {}

    pub fn resume(&self, _host: HostId) {}

    /// Cuts the link from one host to another; the way back stays.
    pub fn cut(&self, from: HostId, to: HostId) {
        self.with(|state, fx| state.set_cut(from, to, true, fx));
    }

    /// Ends a cut. Data sent during the cut arrives after TCP's next retry, within two seconds.
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

    /// Ends all faults of links: cuts, added latency, loss, distrust.
    pub fn heal_links(&self) {
        self.shared.state.lock().wire.links.unclog();
        self.join_all();
    }

    /// Returns whether connections between two hosts work in both directions, however slowly.
    pub fn is_open(&self, a: HostId, b: HostId) -> bool {
        let links = &self.shared.state.lock().wire.links;
        !links.is_cut(a, b) && !links.is_cut(b, a) && !links.distrusted(a, b)
    }

    /// Returns whether the links between two hosts have no fault.
    pub fn is_sound(&self, a: HostId, b: HostId) -> bool {
        let links = &self.shared.state.lock().wire.links;
        links.is_sound(a, b) && links.is_sound(b, a)
    }

    /// Adds to the latency of one link; [`Delay::NONE`] ends the addition.
    pub fn set_delay(&self, from: HostId, to: HostId, added: Delay) {
        self.shared.state.lock().wire.links.set_added(from, to, added);
    }

    /// Loses this many of a thousand segments on this link once: these and later segments are late by the
    /// time of TCP's retry.
    pub fn lose_segments(&self, from: HostId, to: HostId, per_mille: u32) {
        self.shared.state.lock().wire.links.set_loss(from, to, per_mille);
    }

    /// Makes `to` reject the identity of `from`, as after the expiry of a certificate: new connections
    /// between the two, begun by either, open and break at once. Existing connections stay.
    pub fn distrust(&self, from: HostId, to: HostId) {
        self.shared.state.lock().wire.links.set_distrusted(from, to, true);
    }

    pub fn trust(&self, from: HostId, to: HostId) {
        self.shared.state.lock().wire.links.set_distrusted(from, to, false);
    }

    /// Breaks all connections between two hosts and returns their number. Both sides notice at once, or
    /// (seeded) one of them only at its next write.
    pub fn reset_between(&self, a: HostId, b: HostId) -> usize {
        self.with(|state, fx| state.reset(|from, to| (from, to) == (a, b), fx)).unwrap_or(0)
    }

    /// Breaks all connections of a host and returns their number.
    pub fn reset_all(&self, host: HostId) -> usize {
        self.with(|state, fx| state.reset(|from, _| from == host, fx)).unwrap_or(0)
    }

    /// Sets how many bytes of one direction of a connection may be in flight or unread. Default: 256 KiB.
    pub fn set_window(&self, bytes: usize) {
        assert!(bytes > 0, "nothing could ever be written");
        self.shared.state.lock().wire.window = bytes;
    }

    /// Sets the window of all connections of one host.
    pub fn set_window_of(&self, host: HostId, bytes: usize) {
        assert!(bytes > 0, "nothing could ever be written");
        self.shared.state.lock().wire.windows.insert(host, bytes);
    }

    /// Sets the labeler of messages in the record.
    pub fn set_labeler(&self, labeler: Labeler) {
        self.shared.state.lock().wire.labeler = Some(labeler);
    }

    pub fn counters(&self) -> NetworkStats {
        self.shared.state.lock().wire.stats
    }

    /// Counts connections and attempts to connect: zero after the end of every process and of all segments in
    /// flight.
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
