//! The hosts' addresses, and the listening sockets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::task::{Context, Poll, Waker};

use super::conn::ConnId;
use super::effects::Effects;
use crate::time::HostId;

/// Most connections in a listener's backlog.
const BACKLOG_MAX: usize = 128;
/// Range of ports for outgoing connections (Linux's default).
const FIRST_FREE: u16 = 32_768;
const LAST_FREE: u16 = 60_999;

struct Host {
    name: String,
    ip: Ipv4Addr,
    next_port: u16,
    /// Ports of outgoing connections.
    taken: BTreeSet<u16>,
}

struct Listener {
    host: HostId,
    addr: SocketAddrV4,
    waiting: VecDeque<ConnId>,
    acceptor: Option<Waker>,
}

#[derive(Default)]
pub(super) struct Ports {
    hosts: Vec<Option<Host>>,
    listeners: BTreeMap<u64, Listener>,
    serial: u64,
}

impl Ports {
    pub fn add(&mut self, host: HostId, name: &str, ip: Ipv4Addr) {
        let taken = self.hosts.iter().flatten().any(|other| other.ip == ip || other.name == name);
        assert!(!taken, "two hosts of one name or address: {name}, {ip}");
        if self.hosts.len() <= host.0 {
            self.hosts.resize_with(host.0 + 1, || None);
        }
        let (name, taken) = (name.to_owned(), BTreeSet::new());
        self.hosts[host.0] = Some(Host { name, ip, next_port: FIRST_FREE, taken });
    }

    fn host(&mut self, host: HostId) -> &mut Host {
        self.hosts[host.0].as_mut().expect("the host was added")
    }

    /// Resolves `addr` for a process on `from`: the address, and the host with this address, if any.
    pub fn resolve(&self, from: HostId, addr: &str) -> io::Result<(Option<HostId>, SocketAddrV4)> {
        let addr = self.parse(addr)?;
        if addr.ip().is_loopback() {
            return Ok((Some(from), addr));
        }
        let host = self.hosts.iter().position(|host| host.as_ref().is_some_and(|host| host.ip == *addr.ip()));
        Ok((host.map(HostId), addr))
    }

    fn parse(&self, addr: &str) -> io::Result<SocketAddrV4> {
        let unknown = || io::Error::new(ErrorKind::NotFound, format!("nobody knows the address {addr}"));
        match addr.parse::<SocketAddr>() {
            Ok(SocketAddr::V4(addr)) => return Ok(addr),
            Ok(SocketAddr::V6(addr)) if addr.ip().is_unspecified() => {
                return Ok(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, addr.port()));
            }
            Ok(SocketAddr::V6(addr)) if addr.ip().is_loopback() => {
                return Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, addr.port()));
            }
            Ok(SocketAddr::V6(_)) => return Err(unknown()),
            Err(_) => {}
        }
        let (name, port) = addr.rsplit_once(':').ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        if name == "localhost" {
            return Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        }
        let host = self.hosts.iter().flatten().find(|host| host.name == name).ok_or_else(unknown)?;
        Ok(SocketAddrV4::new(host.ip, port))
    }

    /// Reserves a free port for an outgoing connection to `to`, and returns the local address.
    pub fn take_port(&mut self, host: HostId, to: Ipv4Addr) -> io::Result<SocketAddrV4> {
        let port = self.free_port(host)?;
        let host = self.host(host);
        host.taken.insert(port);
        Ok(SocketAddrV4::new(if to.is_loopback() { to } else { host.ip }, port))
    }

    pub fn free_up(&mut self, host: HostId, port: u16) {
        let was_taken = self.host(host).taken.remove(&port);
        assert!(was_taken, "port {port} was freed twice");
    }

    fn free_port(&mut self, id: HostId) -> io::Result<u16> {
        for _ in FIRST_FREE..=LAST_FREE {
            let host = self.host(id);
            let port = host.next_port;
            host.next_port = if port == LAST_FREE { FIRST_FREE } else { port + 1 };
            if !host.taken.contains(&port) && !self.listens(id, Ipv4Addr::UNSPECIFIED, port) {
                return Ok(port);
            }
        }
        Err(ErrorKind::AddrNotAvailable.into())
    }

    /// Returns whether a socket listens on an overlapping address.
    fn listens(&self, host: HostId, ip: Ipv4Addr, port: u16) -> bool {
        self.listeners.values().any(|listener| {
            let other = listener.addr;
            let overlap = ip.is_unspecified() || other.ip().is_unspecified() || ip == *other.ip();
            listener.host == host && other.port() == port && overlap
        })
    }

    /// Opens a listening socket and returns its number.
    pub fn listen(&mut self, host: HostId, addr: &str) -> io::Result<(u64, SocketAddrV4)> {
        let mut addr = self.parse(addr)?;
        if !addr.ip().is_unspecified() && !addr.ip().is_loopback() && *addr.ip() != self.host(host).ip {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        if addr.port() == 0 {
            addr.set_port(self.free_port(host)?);
        } else if self.listens(host, *addr.ip(), addr.port()) {
            return Err(ErrorKind::AddrInUse.into());
        }
        self.serial += 1;
        let listener = Listener { host, addr, waiting: VecDeque::new(), acceptor: None };
        self.listeners.insert(self.serial, listener);
        Ok((self.serial, addr))
    }

    pub fn find(&self, host: HostId, addr: SocketAddrV4) -> Option<u64> {
        let answers = |listener: &Listener| {
            let ip = listener.addr.ip();
            listener.host == host
                && listener.addr.port() == addr.port()
                && (ip.is_unspecified() || ip == addr.ip())
        };
        self.listeners.iter().find(|(_, listener)| answers(listener)).map(|(serial, _)| *serial)
    }

    /// Returns whether a listener's backlog is full.
    pub fn is_full(&self, listener: u64) -> bool {
        self.listeners.get(&listener).is_some_and(|listener| listener.waiting.len() >= BACKLOG_MAX)
    }

    /// Passes a connection to its listener. Returns false if the listener is gone, or its backlog far too
    /// long.
    pub fn enqueue(&mut self, listener: u64, conn: ConnId, fx: &mut Effects<'_>) -> bool {
        let Some(listener) = self.listeners.get_mut(&listener) else { return false };
        if listener.waiting.len() >= 2 * BACKLOG_MAX {
            return false;
        }
        listener.waiting.push_back(conn);
        fx.wake(&mut listener.acceptor);
        true
    }

    pub fn accept(
        &mut self,
        listener: u64,
        cx: &Context<'_>,
        fx: &mut Effects<'_>,
    ) -> Poll<io::Result<ConnId>> {
        let Some(listener) = self.listeners.get_mut(&listener) else {
            return Poll::Ready(Err(ErrorKind::NotConnected.into()));
        };
        if let Some(conn) = listener.waiting.pop_front() {
            return Poll::Ready(Ok(conn));
        }
        fx.wait(&mut listener.acceptor, cx);
        Poll::Pending
    }

    /// Closes a listener. Returns the connections in its backlog.
    pub fn close(&mut self, listener: u64, fx: &mut Effects<'_>) -> VecDeque<ConnId> {
        let Some(mut listener) = self.listeners.remove(&listener) else { return VecDeque::new() };
        fx.forget(&mut listener.acceptor);
        listener.waiting
    }

    pub fn of_host(&self, host: HostId) -> Vec<u64> {
        let mine = self.listeners.iter().filter(|(_, listener)| listener.host == host);
        mine.map(|(serial, _)| *serial).collect()
    }
}
