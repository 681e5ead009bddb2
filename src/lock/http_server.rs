//! A small HTTP server: one request on a connection, one answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::net::{Listener, Stream};
use rowlock_env::{task, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

/// Head of a request; a longer one is refused.
const HEAD_MAX_BYTES: usize = 8 << 10;
/// At once; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 64;

pub struct Incoming {
    pub method: String,
    /// Path of the URL, without the query.
    pub path: String,
    /// Request line and headers.
    pub head: String,
    pub body: Bytes,
}

pub struct Outgoing {
    pub code: u16,
    pub body: Bytes,
    /// Header of a refused method.
    allow: Option<&'static str>,
}

impl Outgoing {
    pub fn new(code: u16, body: impl Into<Bytes>) -> Outgoing {
        Outgoing { code, body: body.into(), allow: None }
    }

    pub fn text(code: u16, text: &str) -> Outgoing {
        Outgoing::new(code, text.to_owned())
    }

    /// The path takes these methods only.
    pub fn not_allowed(methods: &'static str) -> Outgoing {
        Outgoing { allow: Some(methods), ..Outgoing::text(405, "") }
    }
}

/// Answers each connection within `most` of its accept, until the process ends. Larger bodies are refused.
pub async fn serve<F>(
    listener: Listener,
    (most, body_max_bytes): (Duration, usize),
    answer: impl Fn(Incoming) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Outgoing> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let answer = Arc::new(answer);
    loop {
        let place = places.clone().acquire_owned().await.expect("Invariant: the semaphore stays open");
        let stream = listener.accept().await;
        let answer = answer.clone();
        task::spawn("loopback-connection", async move {
            // A client that hangs up wants no answer.
            let _ = time::timeout(most, exchange(stream, body_max_bytes, &*answer)).await;
            drop(place);
        });
    }
}

async fn exchange<F: Future<Output = Outgoing>>(
    mut stream: Stream,
    body_max_bytes: usize,
    answer: &impl Fn(Incoming) -> F,
) -> io::Result<()> {
    let asked = read(&mut stream, body_max_bytes).await?;
    let is_head = asked.as_ref().is_ok_and(|asked| asked.method == "HEAD");
    let said = match asked {
        Ok(asked) => answer(asked).await,
        Err(refusal) => refusal,
    };
    let reason = if said.code < 300 { "OK" } else { "-" };
    let allow = said.allow.map_or(String::new(), |methods| format!("Allow: {methods}\r\n"));
    let head = format!(
        "HTTP/1.1 {} {reason}\r\n{allow}Content-Type: application/json\r\nCache-Control: no-store\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        said.code,
        said.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if !is_head {
        stream.write_all(&said.body).await?;
    }
    stream.shutdown().await?;
    // A close with something unread would take the answer away from the client.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// A whole request, or how it is refused.
async fn read(stream: &mut Stream, body_max_bytes: usize) -> io::Result<Result<Incoming, Outgoing>> {
    let mut bytes = BytesMut::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break end;
        }
        if bytes.len() >= HEAD_MAX_BYTES {
            return Ok(Err(Outgoing::text(431, "the head of the request is too long")));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&bytes.split_to(end + 4)).into_owned();
    let (method, path, length) = match head_of(&head, body_max_bytes) {
        Ok(known) => known,
        Err(refusal) => return Ok(Err(refusal)),
    };
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    bytes.truncate(length);
    Ok(Ok(Incoming { method, path, head, body: bytes.freeze() }))
}

/// Method, path and length of the body.
fn head_of(head: &str, body_max_bytes: usize) -> Result<(String, String, usize), Outgoing> {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(Outgoing::text(400, "this is no request"));
    };
    let mut length = Some(0);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Outgoing::text(411, "the length of the body is needed"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        }
    }
    let length = length.ok_or_else(|| Outgoing::text(400, "Content-Length is no number"))?;
    if length > body_max_bytes {
        return Err(Outgoing::text(413, &format!("the body has more than {body_max_bytes} bytes")));
    }
    let path = target.split('?').next().unwrap_or_default();
    Ok((method.to_owned(), path.to_owned(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_without_its_query_and_bodies_of_unknown_length_are_refused() {
        let head = "POST /a/state?ID=5 HTTP/1.1\r\nHost: x\r\ncontent-length: 12\r\n\r\n";
        let (method, path, length) = head_of(head, 100).map_err(|said| said.code).unwrap();
        assert_eq!((&*method, &*path, length), ("POST", "/a/state", 12));
        for (head, code) in [
            ("GET\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
            ("POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", 413),
        ] {
            assert_eq!(head_of(head, 100).map_err(|said| said.code), Err(code), "{head}");
        }
    }
}
