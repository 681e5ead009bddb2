//! Streams between hosts: connect, listen, accept. TCP without delay (Nagle's algorithm off).

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A connection in both directions.
#[derive(Debug)]
pub struct Stream {
    inner: TcpStream,
    peer: SocketAddr,
}

/// The reading side of a [`Stream`].
#[derive(Debug)]
pub struct ReadHalf {
    inner: OwnedReadHalf,
}

/// The writing side of a [`Stream`]; dropping it closes that direction.
#[derive(Debug)]
pub struct WriteHalf {
    inner: OwnedWriteHalf,
}

impl Stream {
    /// Connects to `host:port`, trying each address that the name has, within `timeout` altogether.
    pub async fn connect(addr: &str, timeout: Duration) -> io::Result<Stream> {
        let inner = crate::time::timeout(timeout, TcpStream::connect(addr)).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {addr} within {timeout:?}"))
        })??;
        Stream::wrap(inner)
    }

    fn wrap(inner: TcpStream) -> io::Result<Stream> {
        inner.set_nodelay(true)?;
        let peer = inner.peer_addr()?;
        Ok(Stream { inner, peer })
    }

    /// The other side.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Two halves, for a task that reads and one that writes.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let (r, w) = self.inner.into_split();
        (ReadHalf { inner: r }, WriteHalf { inner: w })
    }

    /// Reads what is there; `WouldBlock` if nothing is.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.try_read(buf)
    }

    /// Writes what fits; `WouldBlock` if nothing does.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.inner.try_write(buf)
    }
}

impl ReadHalf {
    /// Reads what is there; `WouldBlock` if nothing is.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.try_read(buf)
    }
}

impl WriteHalf {
    /// Writes what fits; `WouldBlock` if nothing does.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.inner.try_write(buf)
    }
}

macro_rules! delegate_read {
    ($t:ty) => {
        impl AsyncRead for $t {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.inner).poll_read(cx, buf)
            }
        }
    };
}

macro_rules! delegate_write {
    ($t:ty) => {
        impl AsyncWrite for $t {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.inner).poll_write(cx, buf)
            }
            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
            }
            fn is_write_vectored(&self) -> bool {
                self.inner.is_write_vectored()
            }
            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.inner).poll_flush(cx)
            }
            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.inner).poll_shutdown(cx)
            }
        }
    };
}

delegate_read!(Stream);
delegate_write!(Stream);
delegate_read!(ReadHalf);
delegate_write!(WriteHalf);

/// Waits for connections.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    local: SocketAddr,
}

impl Listener {
    /// Listens on `host:port`; port 0 takes a free one. A port that lingers from a former process is taken over.
    pub async fn bind(addr: &str) -> io::Result<Listener> {
        let inner = TcpListener::bind(addr).await?;
        let local = inner.local_addr()?;
        Ok(Listener { inner, local })
    }

    /// The next connection. Cancel safe. Errors of single connections (out of descriptors, reset) are returned: wait
    /// a little and go on.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (inner, addr) = self.inner.accept().await?;
        Ok((Stream::wrap(inner)?, addr))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_cross_a_connection_in_both_directions() {
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().to_string();
        let mut a = Stream::connect(&addr, Duration::from_secs(5)).await.expect("connects");
        let (b, _) = listener.accept().await.expect("accepts");
        let (mut br, mut bw) = b.into_split();
        a.write_all(b"ping").await.expect("writes");
        let mut buf = [0; 4];
        br.read_exact(&mut buf).await.expect("reads");
        bw.write_all(&buf).await.expect("writes");
        a.read_exact(&mut buf).await.expect("reads");
        assert_eq!(&buf, b"ping");
    }

    #[tokio::test]
    async fn a_refused_connection_is_an_error_at_once() {
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().to_string();
        drop(listener);
        let refused = Stream::connect(&addr, Duration::from_secs(5)).await.expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
