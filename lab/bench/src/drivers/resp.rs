//! Redis' protocol (RESP 2) over one TCP connection, written by hand, reduced to the needs of a lock.
//!
//! One task uses a connection: the task writes, then reads the socket itself, without a second task between.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use rowlock_env::net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest time for a server to accept a connection.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Answer of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    /// `$3...`; `None` is nil.
    Bulk(Option<Bytes>),
}

pub struct Connection {
    stream: Stream,
    input: BytesMut,
    output: BytesMut,
}

impl Connection {
    /// # Errors
    /// No server listens.
    pub async fn open(address: &str) -> Result<Self> {
        let stream = Stream::connect(address, WAIT_MAX).await;
        let stream = stream.with_context(|| format!("connecting to {address}"))?;
        Ok(Connection { stream, input: BytesMut::with_capacity(4096), output: BytesMut::with_capacity(512) })
    }

    /// Returns the connection for another user.
    ///
    /// # Errors
    /// A reply has not been received.
    pub fn into_stream(self) -> Result<Stream> {
        ensure!(self.input.is_empty() && self.output.is_empty(), "a reply was not received");
        Ok(self.stream)
    }

    /// Sends a command and receives the reply.
    ///
    /// # Errors
    /// The connection broke. An error reply is a [`Reply`].
    pub async fn call(&mut self, words: &[&[u8]]) -> Result<Reply> {
        self.send(words).await?;
        self.receive().await
    }

    /// Sends a command only; the replies to several commands arrive in the same order.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        self.buffer(words);
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// Buffers a command, which leaves with the next sent command.
    pub fn buffer(&mut self, words: &[&[u8]]) {
        command(words, &mut self.output);
    }

    /// Receives one reply of the server.
    ///
    /// # Errors
    /// The connection broke, or the input is not a reply.
    pub async fn receive(&mut self) -> Result<Reply> {
        loop {
            if let Some(reply) = reply(&mut self.input)? {
                return Ok(reply);
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                bail!("Redis closed the connection");
            }
        }
    }
}

/// Appends a command: an array of bulk strings.
pub fn command(words: &[&[u8]], out: &mut BytesMut) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Splits a whole reply off the input; `None` while the reply is incomplete.
///
/// # Errors
/// The input is not a reply.
pub fn reply(input: &mut BytesMut) -> Result<Option<Reply>> {
    let Some(end) = input.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let line = std::str::from_utf8(&input[1..end]).context("a reply that is not text")?;
    let (reply, length) = match input[0] {
        b'+' => (Reply::Status(line.to_owned()), end + 2),
        b'-' => (Reply::Error(line.to_owned()), end + 2),
        b':' => (Reply::Integer(line.parse()?), end + 2),
        b'$' if line == "-1" => (Reply::Bulk(None), end + 2),
        b'$' => {
            let length: usize = line.parse()?;
            if input.len() < end + 2 + length + 2 {
                return Ok(None);
            }
            let bulk = Bytes::copy_from_slice(&input[end + 2..end + 2 + length]);
            (Reply::Bulk(Some(bulk)), end + 2 + length + 2)
        }
        other => bail!("a reply that begins with {other:#x}"),
    };
    input.advance(length);
    Ok(Some(reply))
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::{Connection, Reply, command, reply};

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = BytesMut::new();
        command(&[b"SET", b"k", b""], &mut out);
        assert_eq!(&out[..], b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
    }

    #[tokio::test]
    async fn a_buffered_command_leaves_with_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut ours = Connection::open(&listener.local_addr().unwrap().to_string()).await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        ours.buffer(&[b"A"]);
        ours.send(&[b"B"]).await.unwrap();
        let mut both = [0; 22];
        theirs.read_exact(&mut both).await.unwrap();
        assert_eq!(&both, b"*1\r\n$1\r\nA\r\n*1\r\n$1\r\nB\r\n");
        theirs.write_all(b":0\r\n+OK\r\n").await.unwrap();
        assert_eq!(ours.receive().await.unwrap(), Reply::Integer(0));
        assert_eq!(ours.receive().await.unwrap(), Reply::Status("OK".to_owned()));
    }

    #[test]
    fn replies_are_taken_whole_and_in_order() {
        let mut input = BytesMut::from(b"+OK\r\n:-7\r\n$-1\r\n$2\r\na\n\r\n-NOSCRIPT no\r\n".as_slice());
        let mut replies = Vec::new();
        while let Some(one) = reply(&mut input).unwrap() {
            replies.push(one);
        }
        let expected = [
            Reply::Status("OK".to_owned()),
            Reply::Integer(-7),
            Reply::Bulk(None),
            Reply::Bulk(Some(Bytes::from_static(b"a\n"))),
            Reply::Error("NOSCRIPT no".to_owned()),
        ];
        assert_eq!(replies, expected);
        assert!(input.is_empty());
    }

    #[test]
    fn half_a_reply_is_left_for_later() {
        for half in [b"+OK\r".as_slice(), b"$2\r\n", b"$2\r\nab\r", b""] {
            let mut input = BytesMut::from(half);
            assert_eq!(reply(&mut input).unwrap(), None);
            assert_eq!(&input[..], half);
        }
        assert!(reply(&mut BytesMut::from(b"?\r\n".as_slice())).is_err());
    }
}
