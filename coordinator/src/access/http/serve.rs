//! Serves HTTP/1.1 on accepted connections. Each connection is a task behind the node's turnstile, so a flood
//! of requests leaves processor time to the node's own tasks.

use std::pin::pin;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rowlock_env::busy;
use rowlock_env::task::{Shutdown, spawn};
use rowlock_env::turnstile::{Class, Turnstile};
use tokio::sync::mpsc;
use tower_service::Service as _;

use super::connection::{HttpConnection, Visitor};
use super::listen::BoundedListener;

/// Accepts connections until `shutdown`, then waits for pending requests. The listener's deadlines bound this
/// wait.
pub(super) async fn serve_connections(
    mut listener: BoundedListener,
    routes: Router,
    (turnstile, class): (Turnstile, Class),
    shutdown: Shutdown,
) {
    let (alive, mut ended) = mpsc::channel::<()>(1);
    loop {
        let (connection, visitor) = tokio::select! {
            biased;
            () = shutdown.wait() => break,
            accepted = listener.accept() => accepted,
        };
        let served = serve_one(connection, visitor, routes.clone(), shutdown.clone());
        let alive = alive.clone();
        let connection = async move {
            served.await;
            drop(alive);
        };
        // The task needs no handle: `ended` reports its end.
        drop(spawn("http-connection", turnstile.turns(class, connection)));
        busy::end_turn_if_over().await;
    }
    drop((listener, alive));
    // No task sends a message: `recv` returns `None` after the last task has ended.
    let _: Option<()> = ended.recv().await;
}

async fn serve_one(connection: HttpConnection, visitor: Visitor, routes: Router, shutdown: Shutdown) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(visitor.clone()));
        routes.clone().call(request.map(Body::new))
    });
    let mut served = pin!(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
    let result = tokio::select! {
        biased;
        result = served.as_mut() => result,
        () = shutdown.wait() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::trace!(%error, "an HTTP connection ended early");
    }
}

/// Yields to other tasks between two requests if the task's turn is over.
pub(super) async fn end_turn(request: Request, next: Next) -> Response {
    busy::end_turn_if_over().await;
    next.run(request).await
}
