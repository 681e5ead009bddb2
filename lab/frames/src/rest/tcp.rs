//! Transport to nodes of their own processes: one connection per request.

use std::sync::Arc;

use rowlock_env::net::Stream;
use rowlock_env::task::spawn;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use super::{PATIENCE, Request, Response, Transport};

/// Addresses of the operators' listener and of the nodes in order.
#[derive(Clone, Debug)]
pub struct Tcp(pub Arc<[String]>);

impl Transport for Tcp {
    async fn send(&self, request: Request) -> Response {
        assert!(
            request.from.is_none() && !request.is_http_1_0,
            "only a router inside the test sends {request:?}"
        );
        let address = &self.0[request.node];
        let mut stream = Stream::connect(address, PATIENCE).await.expect("the node listens");
        let Request { method, target, headers, body, .. } = request;
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nConnection: close\r\n{lines}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.expect("the request is sent");
        let mut input = Vec::new();
        let end = loop {
            if let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            assert!(
                stream.read_buf(&mut input).await.expect("a head") > 0,
                "no response to {method} {target}"
            );
        };
        let head = String::from_utf8_lossy(&input[..end]).into_owned();
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
        let header =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        let headers: Vec<(String, String)> = lines.filter_map(header).collect();
        let is_chunked =
            headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let (pieces, body) = mpsc::channel(64);
        drop(spawn("response", read_body(stream, input.split_off(end + 4), is_chunked, pieces)));
        Response { status, headers, body }
    }
}

/// Reads the body until its end, or until the receiver is gone.
async fn read_body(mut stream: Stream, mut input: Vec<u8>, is_chunked: bool, pieces: mpsc::Sender<Vec<u8>>) {
    loop {
        let piece = if is_chunked { chunk(&mut input) } else { Some(std::mem::take(&mut input)) };
        if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
            if pieces.send(piece).await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            read = stream.read_buf(&mut input) => if !read.is_ok_and(|len| len > 0) { return },
            () = pieces.closed() => return,
        }
    }
}

/// Takes a complete chunk from the input.
fn chunk(input: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = input.windows(2).position(|two| two == b"\r\n")?;
    let len = usize::from_str_radix(std::str::from_utf8(&input[..end]).ok()?, 16).ok()?;
    if input.len() < end + 4 + len {
        return None;
    }
    let rest = input.split_off(end + 4 + len);
    let chunk = std::mem::replace(input, rest);
    Some(chunk[end + 2..end + 2 + len].to_vec())
}
