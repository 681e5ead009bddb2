//! Endpoint of a node for HTTP clients. The routes and all code behind them are production code; only the
//! transport differs, because axum starts its connections outside `env` (see
//! `rowlock_coordinator::access::http::api::Direct`). A request is a frame `METHOD PATH\nDOCUMENT`,
//! with headers (`NAME: VALUE`) behind tabs after the path, its answer a frame `STATUS\nDOCUMENT`. The answer
//! of a stream continues with a frame for each piece and ends with the connection. As with HTTP, the node
//! drops a request whose connection ends.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use rowlock_coordinator::access::http::api::{Direct, DirectRequest};
use rowlock_env::busy;
use rowlock_env::net::Listener;
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_frames::wire::Wire;

/// Port at the node's address.
pub const PORT: u16 = 2481;
/// Value of the requests' Host header.
const HOST: &str = "10.0.0.1";
/// Path prefix of routes that answer with a stream.
const STREAMS: &str = "/v1/watch";
/// Idle time after which the endpoint closes a connection.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// An open endpoint. Its tasks end with [`Door::close`].
pub struct Door(Task<()>);

impl Door {
    /// Serves requests until [`Door::close`].
    pub fn open(listener: Listener, api: Direct) -> Door {
        Door(task::spawn("rest-door", serve(listener, api)))
    }

    /// Drops pending requests, as the end of a process does.
    pub async fn close(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

/// Connection task, aborted on drop.
struct Visit(Task<()>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(listener: Listener, api: Direct) {
    let mut visits: Vec<Visit> = Vec::new();
    loop {
        let stream = listener.accept().await;
        let address = stream.peer_addr();
        visits.retain(|visit| !visit.0.is_finished());
        let answers = api.clone();
        let visit = async move {
            let mut wire = Wire::over(stream);
            while answer_next(&mut wire, &answers, address).await.is_some() {
                busy::end_turn_if_over().await;
            }
        };
        visits.push(Visit(task::spawn("rest-visit", api.turns(visit))));
    }
}

async fn answer_next(wire: &mut Wire, api: &Direct, address: std::net::SocketAddr) -> Option<()> {
    let request = time::timeout(IDLE_MAX, wire.frame()).await.ok()?.ok()?;
    let text = std::str::from_utf8(&request).ok()?;
    let (head, body) = text.split_once('\n')?;
    let mut parts = head.split('\t');
    let (method, path) = parts.next()?.split_once(' ')?;
    let headers: Vec<(&str, &str)> = parts.filter_map(|header| header.split_once(": ")).collect();
    if path.starts_with(STREAMS) {
        return stream(wire, api, address, (method, path, &headers[..], "")).await;
    }
    let answer = tokio::select! {
        biased;
        // One request at a time: any further input means that the client has closed the connection.
        _ = wire.frame() => return None,
        answer = api.request(address, HOST, (method, path, &headers[..], body)) => answer,
    };
    let (status, body) = answer?;
    wire.send(&frame(&format!("{status}\n{body}"))).await.ok()
}

/// Forwards a stream until either side closes.
async fn stream(
    wire: &mut Wire,
    api: &Direct,
    address: std::net::SocketAddr,
    request: DirectRequest<'_>,
) -> Option<()> {
    let (status, mut pieces) = tokio::select! {
        biased;
        _ = wire.frame() => return None,
        answer = api.stream(address, HOST, request) => answer?,
    };
    wire.send(&frame(&format!("{status}\n"))).await.ok()?;
    loop {
        let piece = tokio::select! {
            biased;
            _ = wire.frame() => return None,
            piece = pieces.next() => piece?,
        };
        wire.send(&frame(std::str::from_utf8(&piece).ok()?)).await.ok()?;
    }
}

/// Encodes a text behind its length.
pub fn frame(text: &str) -> Bytes {
    let mut frame = BytesMut::with_capacity(4 + text.len());
    frame.put_i32(i32::try_from(text.len()).expect("a request or an answer is short"));
    frame.put_slice(text.as_bytes());
    frame.freeze()
}
