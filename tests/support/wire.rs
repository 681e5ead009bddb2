//! Handwritten client frames, for what no client library would send.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The frame that asks for a new session.
pub fn handshake(timeout_ms: i32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(0i32.to_be_bytes());
    body.extend(0i64.to_be_bytes());
    body.extend(timeout_ms.to_be_bytes());
    body.extend(0i64.to_be_bytes());
    body.extend(16i32.to_be_bytes());
    body.extend([0; 16]);
    body.push(0);
    frame(&body)
}

/// getData without a watch.
pub fn get_data(xid: i32, path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(xid.to_be_bytes());
    body.extend(4i32.to_be_bytes());
    body.extend((path.len() as i32).to_be_bytes());
    body.extend(path.as_bytes());
    body.push(0);
    frame(&body)
}

pub fn frame(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as i32).to_be_bytes().to_vec();
    frame.extend(body);
    frame
}

/// A connection with an open session.
pub async fn attach(addr: &str, timeout_ms: i32) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&handshake(timeout_ms)).await.unwrap();
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.unwrap();
    let mut body = vec![0; i32::from_be_bytes(head) as usize];
    stream.read_exact(&mut body).await.unwrap();
    assert_ne!(body[8..16], [0; 8], "a session was opened");
    stream
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
pub async fn is_closed(stream: &mut TcpStream, limit: Duration) -> bool {
    let drained = async {
        let mut buffer = [0; 4096];
        while !matches!(stream.read(&mut buffer).await, Ok(0) | Err(_)) {}
    };
    tokio::time::timeout(limit, drained).await.is_ok()
}
