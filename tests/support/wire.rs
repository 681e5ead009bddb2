//! Connections to a node, for what no client library would send.

use std::time::Duration;

use bytes::BytesMut;
use rowlock_env::net::Stream;
pub use rowlock_frames::wire::handshake;
use rowlock_frames::wire::{Wire, connect_request};
use rowlock_proto::request::{PathWatch, Request};
use rowlock_proto::{SessionId, Xid, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A getData frame without a watch.
pub fn get_data(xid: i32, path: &str) -> BytesMut {
    let mut out = BytesMut::new();
    let request = Request::GetData(PathWatch { path: path.to_owned(), watch: false });
    encode::request_of(Xid(xid), &request, &mut out);
    out
}

/// A connection without a session.
pub async fn dial(addr: &str) -> Stream {
    Stream::connect(addr, Duration::from_secs(10)).await.unwrap()
}

/// A connection with an open session.
pub async fn attach(addr: &str, timeout_ms: i32) -> Stream {
    let mut wire = Wire::over(dial(addr).await);
    let opened = wire.open(&connect_request(timeout_ms)).await.unwrap();
    assert_ne!(opened.session_id, SessionId::NONE, "a session was opened");
    wire.into_stream()
}

/// The answer to a four-letter word.
pub async fn word(addr: &str, word: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    tokio::time::timeout(Duration::from_secs(10), exchange).await.expect("an answer in time").unwrap()
}

/// Whether the server ends the connection within the limit (whatever it says before).
pub async fn is_closed(stream: &mut (impl AsyncReadExt + Unpin), limit: Duration) -> bool {
    let drained = async {
        let mut buffer = [0; 4096];
        while !matches!(stream.read(&mut buffer).await, Ok(0) | Err(_)) {}
    };
    tokio::time::timeout(limit, drained).await.is_ok()
}
