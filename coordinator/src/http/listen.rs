//! Accepts HTTP connections, a bounded number of them, each for a bounded time.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rowlock_env::net::{Listener, Stream};
use rowlock_env::time::{Sleep, sleep};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX};
use crate::metrics::Metrics;

/// How long to leave the listener alone after a failed accept (usually: out of file descriptors).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A listener that never has more than its number of connections open.
pub(super) struct BoundedListener {
    inner: Listener,
    free: Arc<Semaphore>,
    connection_max: Duration,
    metrics: Arc<Metrics>,
}

impl BoundedListener {
    /// With the bounds of `limits.rs`.
    pub(super) fn new(inner: Listener, metrics: Arc<Metrics>) -> Self {
        Self::with_bounds(inner, metrics, HTTP_CONNECTIONS_MAX, HTTP_CONNECTION_MAX)
    }

    pub(super) fn with_bounds(
        inner: Listener,
        metrics: Arc<Metrics>,
        connections_max: usize,
        connection_max: Duration,
    ) -> Self {
        BoundedListener { inner, free: Arc::new(Semaphore::new(connections_max)), connection_max, metrics }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = self.free.clone().acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match self.inner.accept().await {
                Ok((stream, addr)) => {
                    self.metrics.http_connections_total.inc();
                    let deadline = Box::pin(sleep(self.connection_max));
                    return (Connection { stream, deadline, _permit: permit }, addr);
                }
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection could not be accepted");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.local_addr())
    }
}

/// A stream with a deadline for all of its life.
pub(super) struct Connection {
    stream: Stream,
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "the connection's time is over")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
