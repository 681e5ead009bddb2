//! Calls the routes of the listener without a TCP connection. The simulator carries requests over its own
//! connections.

use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::connect_info::ConnectInfo;
use axum::http::{Request, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt as _;
use rowlock_env::task::Shutdown;
use rowlock_env::turnstile::{Class, Turnstile};
use tower_service::Service as _;

use super::ApiContext;
use crate::access::http::connection::Visitor;

/// Larger than any response except a stream of events, which has no end.
const ANSWER_MAX_BYTES: usize = 1 << 20;

/// Method, path, headers and body.
pub type DirectRequest<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str);

#[derive(Clone)]
pub struct Direct {
    routes: Router,
    turnstile: Turnstile,
}

impl Direct {
    /// Returns the routes of [`serve`](super::serve()). Streams end at `shutdown`.
    pub fn new(context: ApiContext, shutdown: Shutdown) -> Self {
        let turnstile = context.http.turnstile.clone();
        Direct { routes: super::router(context, false, shutdown), turnstile }
    }

    /// Wraps a connection's task into the turnstile of the listener's connections.
    pub fn turns<F: Future>(&self, connection: F) -> impl Future<Output = F::Output> + use<F> {
        self.turnstile.turns(Class::Client, connection)
    }

    /// Sends a request from `address` to `host` and returns status and document. `None`: invalid HTTP, or a
    /// response without an end.
    ///
    /// # Cancel safety
    /// Same as a broken connection: the request may have been executed.
    pub async fn request(
        &self,
        address: SocketAddr,
        host: &str,
        request: DirectRequest<'_>,
    ) -> Option<(u16, String)> {
        let response = self.call(address, host, request).await?;
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), ANSWER_MAX_BYTES).await.ok()?;
        Some((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Opens a stream of events, like [`Direct::request`].
    pub async fn stream(
        &self,
        address: SocketAddr,
        host: &str,
        request: DirectRequest<'_>,
    ) -> Option<(u16, Pieces)> {
        let response = self.call(address, host, request).await?;
        Some((response.status().as_u16(), Pieces(response.into_body().into_data_stream())))
    }

    async fn call(
        &self,
        address: SocketAddr,
        host: &str,
        (method, path, headers, body): DirectRequest<'_>,
    ) -> Option<Response> {
        let visitor = ConnectInfo(Visitor::unconnected(address));
        let request = Request::builder().method(method).uri(path).header(header::HOST, host);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.extension(visitor).body(Body::from(body.to_owned())).ok()?;
        let mut routes = self.routes.clone();
        let Ok(response) = routes.call(request).await;
        Some(response)
    }
}

/// Chunks of a stream. Dropping the value closes the stream.
pub struct Pieces(BodyDataStream);

impl Pieces {
    /// Waits for the next chunk; `None`: the node ended the stream.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.next().await?.ok()
    }
}
