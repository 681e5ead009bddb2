//! One connection for many tasks: requests leave in the order of the calls, and replies arrive in the same
//! order, as both Redis and ZooKeeper answer.

use std::collections::VecDeque;

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use rowlock_env::net::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

/// Splits the next reply off the input; `None` while the reply is incomplete.
pub type Split<R> = fn(&mut BytesMut) -> Result<Option<R>>;

/// Handle of a connection. The last dropped handle closes the connection.
pub struct Pipe<R> {
    requests: mpsc::UnboundedSender<Asked<R>>,
}

struct Asked<R> {
    bytes: Vec<u8>,
    reply: oneshot::Sender<R>,
}

impl<R> Clone for Pipe<R> {
    fn clone(&self) -> Self {
        Pipe { requests: self.requests.clone() }
    }
}

impl<R: Send + 'static> Pipe<R> {
    /// Takes over the connection; no reply may be outstanding.
    pub fn over(stream: Stream, split: Split<R>) -> Self {
        let (requests, asked) = mpsc::unbounded_channel();
        // A broken connection drops the waiting senders, so their callers return an error.
        tokio::spawn(async move { run(stream, asked, split).await });
        Pipe { requests }
    }

    /// Sends a request; the reply arrives on the channel, which is closed if the connection breaks.
    /// Simultaneous requests of several tasks leave in one write.
    ///
    /// # Errors
    /// The connection broke before.
    pub fn send(&self, bytes: Vec<u8>) -> Result<oneshot::Receiver<R>> {
        let (reply, answered) = oneshot::channel();
        self.requests.send(Asked { bytes, reply }).ok().context("the shared connection broke")?;
        Ok(answered)
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn call(&self, bytes: Vec<u8>) -> Result<R> {
        self.send(bytes)?.await.context("the shared connection broke")
    }
}

/// Runs until all handles are dropped, or the connection breaks.
async fn run<R>(stream: Stream, mut asked: mpsc::UnboundedReceiver<Asked<R>>, split: Split<R>) -> Result<()> {
    const AT_ONCE: usize = 1024;
    let (mut reader, mut writer) = stream.into_split();
    let (mut waiting, mut input) = (VecDeque::new(), BytesMut::with_capacity(1 << 16));
    let mut batch = Vec::with_capacity(AT_ONCE);
    loop {
        tokio::select! {
            count = asked.recv_many(&mut batch, AT_ONCE) => {
                if count == 0 {
                    return Ok(());
                }
                send(&mut writer, &mut batch, &mut waiting).await?;
            }
            read = receive(&mut reader, &mut input) => {
                read?;
                while let Some(reply) = split(&mut input)? {
                    let waits: oneshot::Sender<R> = waiting.pop_front().context("a reply without a request")?;
                    // An ended task needs no reply.
                    let _ = waits.send(reply);
                }
            }
        }
    }
}

async fn send<R>(
    writer: &mut (impl AsyncWrite + Unpin),
    batch: &mut Vec<Asked<R>>,
    waiting: &mut VecDeque<oneshot::Sender<R>>,
) -> Result<()> {
    let mut output = Vec::with_capacity(batch.iter().map(|asked| asked.bytes.len()).sum());
    for asked in batch.drain(..) {
        output.extend_from_slice(&asked.bytes);
        waiting.push_back(asked.reply);
    }
    Ok(writer.write_all(&output).await?)
}

async fn receive(reader: &mut (impl AsyncRead + Unpin), input: &mut BytesMut) -> Result<()> {
    input.reserve(1 << 14);
    if reader.read_buf(input).await? == 0 {
        bail!("the server closed the connection");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::{Buf, BytesMut};
    use rowlock_env::net::{Listener, Stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::Pipe;

    fn byte(input: &mut BytesMut) -> anyhow::Result<Option<u8>> {
        Ok((!input.is_empty()).then(|| input.get_u8()))
    }

    async fn pipe() -> (Pipe<u8>, Stream) {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        let stream = Stream::connect(&address, Duration::from_secs(10)).await.unwrap();
        (Pipe::over(stream, byte), listener.accept().await)
    }

    #[tokio::test]
    async fn each_task_gets_the_reply_to_its_own_request() {
        let (pipe, mut server) = pipe().await;
        let echo = tokio::spawn(async move {
            for _ in 0..200 {
                let request = server.read_u8().await.unwrap();
                server.write_u8(!request).await.unwrap();
            }
        });
        let tasks = (0..200_u8).map(|n| {
            let pipe = pipe.clone();
            tokio::spawn(async move { (n, pipe.call(vec![n]).await.unwrap()) })
        });
        for task in tasks.collect::<Vec<_>>() {
            let (sent, reply) = task.await.unwrap();
            assert_eq!(reply, !sent);
        }
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn a_broken_connection_fails_the_calls() {
        let (pipe, server) = pipe().await;
        drop(server);
        assert!(pipe.call(vec![1]).await.is_err());
        assert!(pipe.call(vec![1]).await.is_err());
    }
}
