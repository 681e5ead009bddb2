//! GET, for `/v1/status` and `/metrics`, and JSON, for locks.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The body of a 200, or nothing.
pub async fn get(addr: &str, path: &str) -> Option<String> {
    let (code, body) = answer(addr, path).await?;
    (code == "200").then_some(body)
}

/// The body of a 503, or nothing.
pub async fn get_refused(addr: &str, path: &str) -> Option<String> {
    let (code, body) = answer(addr, path).await?;
    (code == "503").then_some(body)
}

async fn answer(addr: &str, path: &str) -> Option<(String, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await.ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n").as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let code = head.split_whitespace().nth(1)?;
        Some((code.to_owned(), body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(2), exchange).await.ok()?
}

pub async fn status(addr: &str) -> Option<Value> {
    serde_json::from_str(&get(addr, "/v1/status").await?).ok()
}

/// Status and document of the answer; nothing if there was none.
pub async fn post(addr: &str, path: &str, document: &Value) -> Option<(u16, Value)> {
    request(addr, &format!("POST {path}"), "", &document.to_string()).await
}

/// The same for any method (with its path), with more lines of the head.
pub async fn request(addr: &str, what: &str, lines: &str, body: &str) -> Option<(u16, Value)> {
    let (head, body) = exchange(addr, what, lines, body).await?;
    let code = head.split_whitespace().nth(1)?.parse().ok()?;
    let document = if body.is_empty() { Value::Null } else { serde_json::from_str(&body).ok()? };
    Some((code, document))
}

/// The same; gives head and body of the answer.
pub async fn exchange(addr: &str, what: &str, lines: &str, body: &str) -> Option<(String, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await.ok()?;
        let head = format!(
            "{what} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{lines}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(75), exchange).await.ok()?
}
