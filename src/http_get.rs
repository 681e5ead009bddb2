//! One GET of a JSON document from a node's HTTP listener: all the HTTP that `status` and `up` need.

use std::io;
use std::time::Duration;

use rowlock_env::net::Stream;
use rowlock_env::time;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A status document is a few hundred bytes, a metrics page some thousand lines.
const ANSWER_MAX_BYTES: u64 = 4 << 20;

/// Gets `path` from `addr` (`host:port`) as JSON, within `deadline` altogether.
pub async fn json(addr: &str, path: &str, deadline: Duration) -> io::Result<Value> {
    let body = text(addr, path, deadline).await?;
    serde_json::from_str(&body).map_err(|e| invalid(format!("{path} of {addr} is not JSON: {e}")))
}

/// Gets `path` from `addr` as text, within `deadline` altogether. Any status but 200 is an error.
pub async fn text(addr: &str, path: &str, deadline: Duration) -> io::Result<String> {
    let exchange = async {
        let mut stream = Stream::connect(addr, deadline).await?;
        // HTTP/1.0: no chunks, and the end of the body is the end of the connection.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\nAccept: */*\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer).await?;
        let answer =
            String::from_utf8(answer).map_err(|_| invalid(format!("{addr} answered with no text")))?;
        let (head, body) =
            answer.split_once("\r\n\r\n").ok_or_else(|| invalid(format!("{addr} does not speak HTTP")))?;
        let status = head.split_whitespace().nth(1).unwrap_or_default();
        if status != "200" {
            return Err(invalid(format!("{addr} answered {path} with {status}")));
        }
        Ok(body.to_owned())
    };
    time::timeout(deadline, exchange).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("{addr} did not answer in time")))
    })
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
