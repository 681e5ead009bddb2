//! State behind the network's lock: connections, listeners, attempts, and events of machines and links.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use super::conn::{Conn, ConnId, End, Side};
use super::dial::Attempt;
use super::effects::Effects;
use super::flow::Load;
use super::ports::Ports;
use super::wire::Wire;
use crate::rng::Rng;
use crate::time::{HostId, Nanos};
use crate::trace::What;

#[derive(Default)]
pub(super) struct Conns {
    slots: Vec<Option<Conn>>,
    free: Vec<usize>,
    serial: u64,
}

impl Conns {
    pub fn add(&mut self, listener: u64, client: End, server: End) -> ConnId {
        self.serial += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let id = ConnId { slot, serial: self.serial };
        self.slots[slot] = Some(Conn::new(id, listener, client, server));
        id
    }

    pub fn get(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.slots.get_mut(id.slot)?.as_mut().filter(|conn| conn.id == id)
    }

    fn remove(&mut self, id: ConnId) {
        self.slots[id.slot] = None;
        self.free.push(id.slot);
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Conn> {
        self.slots.iter_mut().flatten()
    }

    /// Returns the connections that `wanted` accepts.
    fn find(&self, wanted: impl Fn(&Conn) -> bool) -> Vec<ConnId> {
        self.slots.iter().flatten().filter(|conn| wanted(conn)).map(|conn| conn.id).collect()
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

pub(super) struct State {
    pub wire: Wire,
    pub ports: Ports,
    pub conns: Conns,
    pub attempts: BTreeMap<u64, Attempt>,
    pub serial: u64,
}

impl State {
    pub fn new(rng: Rng) -> Self {
        State {
            wire: Wire::new(rng),
            ports: Ports::default(),
            conns: Conns::default(),
            attempts: BTreeMap::new(),
            serial: 0,
        }
    }

    /// Handles arrivals at the other end of `way`.
    pub fn arrive(&mut self, id: ConnId, way: Side, when: Nanos, fx: &mut Effects<'_>) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.flow(way).alarm != Some(when) {
            return; // another event covers the next arrival
        }
        conn.flow(way).alarm = None;
        while let Some(load) = conn.next_arrived(way, &mut self.wire, fx) {
            match load {
                Load::Open if self.wire.fails_handshake(conn.hosts(way)) => {
                    conn.turn_away(&mut self.wire, fx)
                }
                Load::Open if self.ports.enqueue(conn.listener, id, fx) => conn.open(),
                Load::Open => conn.turn_away(&mut self.wire, fx),
                Load::Data(bytes, message) => conn.receive(way, bytes, message, &mut self.wire, fx),
                Load::End => conn.receive_end(way, fx),
            }
        }
        conn.receive_reset(way, &mut self.wire, fx);
        conn.set_alarm(way, fx);
        self.sweep(id);
    }

    pub fn abandon(&mut self, id: ConnId, way: Side, since: Nanos, fx: &mut Effects<'_>) {
        if let Some(conn) = self.conns.get(id) {
            conn.abandon(way, since, &mut self.wire, fx);
            self.sweep(id);
        }
    }

    /// Releases the last handle of an end.
    pub fn release(&mut self, id: ConnId, side: Side, fx: &mut Effects<'_>) {
        let Some(conn) = self.conns.get(id) else { return };
        conn.close_read(side, &mut self.wire, fx);
        conn.close_write(side, &mut self.wire, fx);
        conn.leave(side, fx);
        self.sweep(id);
    }

    fn sweep(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id).filter(|conn| conn.is_over()) {
            let client = conn.end(Side::Client);
            let (host, port) = (client.host, client.addr.port());
            self.conns.remove(id);
            self.ports.free_up(host, port);
        }
    }

    /// Closes a listening socket and rejects the connections in its backlog.
    pub fn close_port(&mut self, listener: u64, fx: &mut Effects<'_>) {
        for id in self.ports.close(listener, fx) {
            if let Some(conn) = self.conns.get(id) {
                conn.turn_away(&mut self.wire, fx);
                self.sweep(id);
            }
        }
    }

    /// Handles the end of a host's process; its kernel closes the sockets.
    pub fn process_died(&mut self, host: HostId, fx: &mut Effects<'_>) {
        self.cancel_dials(host, fx);
        for listener in self.ports.of_host(host) {
            self.close_port(listener, fx);
        }
        self.at_each_end(host, |conn, side, wire| conn.process_died(side, wire, fx));
    }

    /// Handles the end of a host's process and kernel.
    pub fn power_lost(&mut self, host: HostId, fx: &mut Effects<'_>) {
        self.cancel_dials(host, fx);
        self.wire.links.set_power(host, false);
        for listener in self.ports.of_host(host) {
            self.ports.close(listener, fx); // their connections end with the host's other connections
        }
        self.at_each_end(host, |conn, side, wire| conn.power_lost(side, wire, fx));
    }

    fn at_each_end(&mut self, host: HostId, mut f: impl FnMut(&mut Conn, Side, &mut Wire)) {
        for id in self.conns.find(|conn| Side::BOTH.iter().any(|side| conn.is_at(*side, host))) {
            let Some(conn) = self.conns.get(id) else { continue };
            for side in Side::BOTH {
                if conn.is_at(side, host) {
                    f(conn, side, &mut self.wire);
                }
            }
            self.sweep(id);
        }
    }

    pub fn boot(&mut self, host: HostId, fx: &mut Effects<'_>) {
        self.wire.links.set_power(host, true);
        for conn in self.conns.iter_mut() {
            for way in Side::BOTH {
                if conn.end(way.other()).host == host {
                    conn.release(way, &mut self.wire, fx);
                }
            }
        }
    }

    pub fn set_cut(&mut self, from: HostId, to: HostId, cut: bool, fx: &mut Effects<'_>) {
        if !self.wire.links.set_cut(from, to, cut) {
            return;
        }
        fx.trace.record(fx.now, || if cut { What::Cut { from, to } } else { What::Joined { from, to } });
        if cut {
            return;
        }
        for conn in self.conns.iter_mut() {
            for way in Side::BOTH {
                // Held segments of this direction, and acknowledgements for the other one.
                let hosts = conn.hosts(way);
                if hosts == (from, to) || hosts == (to, from) {
                    conn.release(way, &mut self.wire, fx);
                }
            }
        }
    }

    /// Breaks the live connections that `wanted` accepts, and returns their number. Both ends notice at once,
    /// or (seeded) one of them only at its next write.
    pub fn reset(&mut self, wanted: impl Fn(HostId, HostId) -> bool, fx: &mut Effects<'_>) -> usize {
        let live = |conn: &Conn| {
            let (client, server) = conn.hosts(Side::Client);
            let works = Side::BOTH.iter().all(|side| conn.end(*side).broken.is_none());
            works && (wanted(client, server) || wanted(server, client))
        };
        let broken = self.conns.find(live);
        for id in &broken {
            let Some(conn) = self.conns.get(*id) else { continue };
            let knowing = match self.wire.rng.below(4) {
                0 => &Side::BOTH[..1],
                1 => &Side::BOTH[1..],
                _ => &Side::BOTH,
            };
            for side in knowing {
                let forget = self.wire.rng.chance(50);
                conn.break_end(*side, ErrorKind::ConnectionReset, forget, &mut self.wire, fx);
            }
            self.sweep(*id);
        }
        broken.len()
    }
}
