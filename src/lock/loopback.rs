//! A small HTTP server for the programs of one machine: one request on a connection, one answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::net::{Listener, Stream};
use rowlock_env::{task, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

/// From the accept to the end of the answer, which may wait for a change of the leader.
const EXCHANGE_MAX: Duration = Duration::from_secs(60);
/// Head of a request; a longer one is refused.
const HEAD_MAX_BYTES: usize = 8 << 10;
/// Body of a request; more than a znode takes.
const BODY_MAX_BYTES: usize = 4 << 20;
/// At once; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// How long to leave the listener alone after a failed accept (usually: out of file descriptors).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

pub struct Incoming {
    pub method: String,
    /// Path of the URL, without the query.
    pub path: String,
    pub body: Bytes,
}

pub struct Outgoing {
    pub code: u16,
    pub body: Bytes,
}

impl Outgoing {
    pub fn text(code: u16, text: &str) -> Outgoing {
        Outgoing { code, body: Bytes::copy_from_slice(text.as_bytes()) }
    }
}

/// Answers each connection, until the process ends.
pub async fn serve<F>(listener: Listener, answer: impl Fn(Incoming) -> F + Send + Sync + 'static)
where
    F: Future<Output = Outgoing> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let answer = Arc::new(answer);
    loop {
        let place = places.clone().acquire_owned().await.expect("Invariant: the semaphore stays open");
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer.clone();
                task::spawn("loopback-connection", async move {
                    // A client that hangs up wants no answer.
                    let _ = time::timeout(EXCHANGE_MAX, exchange(stream, &*answer)).await;
                    drop(place);
                });
            }
            Err(_) => time::sleep(ACCEPT_RETRY).await,
        }
    }
}

async fn exchange<F: Future<Output = Outgoing>>(
    mut stream: Stream,
    answer: &impl Fn(Incoming) -> F,
) -> io::Result<()> {
    let said = match read(&mut stream).await? {
        Ok(asked) => answer(asked).await,
        Err(refusal) => refusal,
    };
    let head = format!(
        "HTTP/1.1 {} -\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        said.code,
        said.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&said.body).await?;
    stream.shutdown().await?;
    // A close with something unread would take the answer away from the client.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// A whole request, or how it is refused.
async fn read(stream: &mut Stream) -> io::Result<Result<Incoming, Outgoing>> {
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
    let (method, path, length) = match head_of(&head) {
        Ok(known) => known,
        Err(refusal) => return Ok(Err(refusal)),
    };
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    bytes.truncate(length);
    Ok(Ok(Incoming { method, path, body: bytes.freeze() }))
}

/// Method, path and length of the body.
fn head_of(head: &str) -> Result<(String, String, usize), Outgoing> {
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
    if length > BODY_MAX_BYTES {
        return Err(Outgoing::text(413, "the body has more than 4 MiB"));
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
        let (method, path, length) = head_of(head).map_err(|said| said.code).unwrap();
        assert_eq!((&*method, &*path, length), ("POST", "/a/state", 12));
        for (head, code) in [
            ("GET\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
            ("POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", 413),
        ] {
            assert_eq!(head_of(head).map_err(|said| said.code), Err(code), "{head}");
        }
    }
}
