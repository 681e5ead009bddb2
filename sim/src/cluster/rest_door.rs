//! The door of a node for clients by HTTP. The routes, and all behind them, are the production code; only the
//! way there is another one, because axum starts its connections past the seam (see
//! `rowlock_coordinator::http::api::Direct`): a request is a frame `METHOD PATH\nDOCUMENT`, and its answer is
//! a frame `STATUS\nDOCUMENT`. That of a stream goes on with a frame for each piece, and ends with the
//! connection. As with HTTP, a request whose connection ends is dropped.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use rowlock_coordinator::http::api::Direct;
use rowlock_env::busy;
use rowlock_env::net::Listener;
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_frames::wire::Wire;

/// Where it listens, at the address of its node.
pub const PORT: u16 = 2481;
/// The host that requests are for.
const HOST: &str = "10.0.0.1";
/// Answers here are streams.
const STREAMS: &str = "/v1/watch";
/// A connection that asks nothing for so long is closed.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// An open door. Its tasks end with [`Door::close`].
pub struct Door(Task<()>);

impl Door {
    /// Serves requests until it is closed.
    pub fn open(listener: Listener, api: Direct) -> Door {
        Door(task::spawn("rest-door", serve(listener, api)))
    }

    /// Drops what is under way, as a process that ends does.
    pub async fn close(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

/// Ends with what owns it.
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
    let (method, path) = head.split_once(' ')?;
    if path.starts_with(STREAMS) {
        return stream(wire, api, address, path).await;
    }
    let answer = tokio::select! {
        biased;
        // One request at a time: whatever comes now is the end of the connection.
        _ = wire.frame() => return None,
        answer = api.request(address, HOST, (method, path, body.to_owned())) => answer,
    };
    let (status, body) = answer?;
    wire.send(&frame(&format!("{status}\n{body}"))).await.ok()
}

/// Ends with the stream, whichever side ends it.
async fn stream(wire: &mut Wire, api: &Direct, address: std::net::SocketAddr, path: &str) -> Option<()> {
    let (status, mut pieces) = tokio::select! {
        biased;
        _ = wire.frame() => return None,
        answer = api.stream(address, HOST, path) => answer?,
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

/// A text behind its length.
pub fn frame(text: &str) -> Bytes {
    let mut frame = BytesMut::with_capacity(4 + text.len());
    frame.put_i32(i32::try_from(text.len()).expect("a request or an answer is short"));
    frame.put_slice(text.as_bytes());
    frame.freeze()
}
