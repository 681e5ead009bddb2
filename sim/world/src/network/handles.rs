//! Handles of a process: ends of connections, listening sockets, attempts to connect.
//!
//! Each handle belongs to the process that created it. After the end of that process its handles return
//! errors and change nothing.

use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rowlock_env::world::{Conduit, Port};

use super::Network;
use super::conn::{Conn, ConnId, Side};
use super::effects::Effects;
use super::wire::Wire;

struct Handle {
    network: Network,
    conn: ConnId,
    side: Side,
    peer: SocketAddrV4,
}

impl Handle {
    fn with<T>(&self, f: impl FnOnce(&mut Conn, &mut Wire, &mut Effects<'_>) -> T) -> Option<T> {
        let on_it = |state: &mut super::state::State, fx: &mut Effects<'_>| {
            let conn = state.conns.get(self.conn)?;
            Some(f(conn, &mut state.wire, fx))
        };
        self.network.with(on_it).flatten()
    }
}

/// Returns the error of an end whose connection is forgotten, or whose world has ended.
fn gone<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(ErrorKind::NotConnected.into()))
}

fn at_once<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(ErrorKind::WouldBlock.into()),
    }
}

impl Conduit for Handle {
    fn peer_addr(&self) -> SocketAddr {
        self.peer.into()
    }

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.with(|conn, wire, fx| conn.read(self.side, Some(cx), buf, wire, fx)).unwrap_or_else(gone)
    }

    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|conn, wire, fx| conn.write(self.side, Some(cx), buf, wire, fx)).unwrap_or_else(gone)
    }

    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        at_once(self.with(|conn, wire, fx| conn.read(self.side, None, buf, wire, fx)).unwrap_or_else(gone))
    }

    fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        at_once(self.with(|conn, wire, fx| conn.write(self.side, None, buf, wire, fx)).unwrap_or_else(gone))
    }

    fn close_read(&self) {
        self.with(|conn, wire, fx| conn.close_read(self.side, wire, fx));
    }

    fn close_write(&self) {
        self.with(|conn, wire, fx| conn.close_write(self.side, wire, fx));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.network.with(|state, fx| state.release(self.conn, self.side, fx));
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:?} of connection {} to {})", self.side, self.conn.serial, self.peer)
    }
}

struct Listening {
    network: Network,
    listener: u64,
    local: SocketAddrV4,
}

impl Port for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.local.into()
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arc<dyn Conduit>>> {
        let accepted = self.network.with(|state, fx| {
            let conn = std::task::ready!(state.ports.accept(self.listener, cx, fx))?;
            let peer = state.conns.get(conn).map(|conn| conn.end(Side::Client).addr);
            Poll::Ready(Ok((conn, peer.ok_or(ErrorKind::ConnectionAborted)?)))
        });
        let (conn, peer) = std::task::ready!(accepted.unwrap_or_else(gone))?;
        Poll::Ready(Ok(Arc::new(Handle { network: self.network.clone(), conn, side: Side::Server, peer })))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.network.with(|state, fx| state.close_port(self.listener, fx));
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listening({})", self.local)
    }
}

/// Attempt to connect. Dropping the attempt cancels it.
struct Dial {
    network: Network,
    attempt: u64,
    addr: String,
    timeout: Duration,
}

impl Future for Dial {
    type Output = io::Result<Arc<dyn Conduit>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let dial = &*self;
        let outcome = dial.network.with(|state, fx| {
            let conn = std::task::ready!(state.poll_dial(dial.attempt, cx, fx))?;
            let peer = state.conns.get(conn).map(|conn| conn.end(Side::Server).addr);
            Poll::Ready(Ok((conn, peer.ok_or(ErrorKind::NotConnected)?)))
        });
        match std::task::ready!(outcome.unwrap_or(Poll::Ready(Err(ErrorKind::NotConnected)))) {
            Ok((conn, peer)) => {
                let network = dial.network.clone();
                Poll::Ready(Ok(Arc::new(Handle { network, conn, side: Side::Client, peer })))
            }
            Err(kind) => {
                let text = match kind {
                    ErrorKind::TimedOut => {
                        format!("no connection to {} within {:?}", dial.addr, dial.timeout)
                    }
                    _ => format!("no connection to {}: {kind}", dial.addr),
                };
                Poll::Ready(Err(io::Error::new(kind, text)))
            }
        }
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        self.network.with(|state, fx| state.cancel_dial(self.attempt, fx));
    }
}

pub(super) fn dial(network: &Network, attempt: u64, addr: &str, timeout: Duration) -> super::Connecting {
    Box::pin(Dial { network: network.clone(), attempt, addr: addr.to_owned(), timeout })
}

pub(super) fn listening(network: &Network, listener: u64, local: SocketAddrV4) -> Arc<dyn Port> {
    Arc::new(Listening { network: network.clone(), listener, local })
}
