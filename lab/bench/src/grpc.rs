//! gRPC's unary calls and keep-alives over one HTTP/2 connection, reduced to the needs of etcd's client.
//!
//! There is no background task, unless many tasks share the connection: a caller that waits for an answer
//! drives the connection meanwhile.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, Method, Request, Uri, Version};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Prefix of every message: the compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// Window beyond the size of all answers in flight.
const WINDOW_BYTES: u32 = 4 << 20;

/// Connection to one server.
pub struct Channel {
    requests: SendRequest<Bytes>,
    connection: Connection<TcpStream, Bytes>,
    origin: String,
    repeated: Option<Repeated>,
}

/// Connection for many tasks.
#[derive(Clone)]
pub struct Shared {
    requests: SendRequest<Bytes>,
    origin: Arc<str>,
    _ends: Arc<Ends>,
}

/// Ends the task that drives a shared connection with its last handle.
struct Ends(JoinHandle<Result<()>>);

/// Open call that sends the same message at intervals.
struct Repeated {
    send: SendStream<Bytes>,
    response: Option<ResponseFuture>,
    receive: Option<RecvStream>,
    message: Bytes,
    every: Duration,
    next: Instant,
}

impl Channel {
    /// # Errors
    /// No server listens, or it does not speak HTTP/2.
    pub async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .enable_push(false)
            .handshake(stream)
            .await?;
        Ok(Channel { requests, connection, origin: format!("http://{address}"), repeated: None })
    }

    /// Sends one request and waits for the answer.
    ///
    /// # Errors
    /// The server answered with a status other than OK, or the connection broke.
    pub async fn call(&mut self, path: &'static str, message: &[u8]) -> Result<Bytes> {
        let answer = unary(self.requests.clone(), &self.origin, path, message);
        drive(&mut self.connection, self.repeated.as_mut(), answer).await
    }

    /// Returns the connection for many tasks. A task drives the connection while handles exist.
    pub fn into_shared(mut self) -> Shared {
        let (requests, origin) = (self.requests.clone(), Arc::from(self.origin.as_str()));
        let task = tokio::spawn(async move { self.stay().await });
        Shared { requests, origin, _ends: Arc::new(Ends(task)) }
    }

    /// Opens a call that sends `message` now and after every interval `every`, as long as a caller waits in
    /// [`Channel::call`] or [`Channel::stay`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn repeat(&mut self, path: &'static str, message: Bytes, every: Duration) -> Result<()> {
        let (response, send) = self.requests.send_request(request(&self.origin, path)?, false)?;
        let next = Instant::now();
        self.repeated =
            Some(Repeated { send, response: Some(response), receive: None, message, every, next });
        Ok(())
    }

    /// Only runs the call of [`Channel::repeat`], for ever.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn stay(&mut self) -> Result<()> {
        drive(&mut self.connection, self.repeated.as_mut(), pending()).await
    }
}

impl Shared {
    /// Sends a unary call, like [`Channel::call`].
    ///
    /// # Errors
    /// The same as [`Channel::call`].
    pub async fn call(&self, path: &'static str, message: &[u8]) -> Result<Bytes> {
        unary(self.requests.clone(), &self.origin, path, message).await
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn unary(
    requests: SendRequest<Bytes>,
    origin: &str,
    path: &'static str,
    message: &[u8],
) -> Result<Bytes> {
    let (response, mut send) = requests.ready().await?.send_request(request(origin, path)?, false)?;
    send.send_data(framed(message), true)?;
    let (head, mut body) = response.await?.into_parts();
    let mut data = BytesMut::new();
    while let Some(piece) = body.data().await {
        take(&mut body, &piece?, &mut data)?;
    }
    let trailers = body.trailers().await?;
    check_status(trailers.as_ref().unwrap_or(&head.headers)).context(path)?;
    unframed(&data.freeze())
}

fn request(origin: &str, path: &'static str) -> Result<Request<()>> {
    let uri: Uri = format!("{origin}{path}").parse()?;
    let request = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(uri)
        .header(TE, "trailers")
        .header(CONTENT_TYPE, "application/grpc");
    Ok(request.body(())?)
}

impl Repeated {
    /// Cancel safe: the next run reads the remaining input.
    async fn run(&mut self) -> Result<()> {
        let mut data = BytesMut::new();
        loop {
            sleep_until(self.next).await;
            self.send.send_data(framed(&self.message), false)?;
            self.next = Instant::now() + self.every;
            // All answers are equal: only the end of the call matters.
            while self.next > Instant::now() {
                data.clear();
                match timeout_at(self.next, self.piece(&mut data)).await {
                    Ok(read) => read?,
                    Err(_) => break,
                }
            }
        }
    }

    async fn piece(&mut self, data: &mut BytesMut) -> Result<()> {
        if let Some(response) = &mut self.response {
            self.receive = Some(response.await?.into_body());
            self.response = None;
        }
        let receive = self.receive.as_mut().context("the call has ended")?;
        let piece = receive.data().await.context("the server ended the call")??;
        take(receive, &piece, data)
    }
}

/// Polls the connection until the answer arrives.
async fn drive<T>(
    connection: &mut Connection<TcpStream, Bytes>,
    repeated: Option<&mut Repeated>,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    let beside = async {
        match repeated {
            Some(repeated) => repeated.run().await,
            None => pending().await,
        }
    };
    let (mut answer, mut beside) = (pin!(answer), pin!(beside));
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(answer);
        }
        if let Poll::Ready(Err(error)) = beside.as_mut().poll(cx) {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(end) = Pin::new(&mut *connection).poll(cx) {
            let error = end.err().map_or_else(|| anyhow!("the server closed the connection"), Into::into);
            return Poll::Ready(Err(error));
        }
        // The connection may just have read the answer.
        answer.as_mut().poll(cx)
    })
    .await
}

fn take(body: &mut RecvStream, piece: &Bytes, data: &mut BytesMut) -> Result<()> {
    data.extend_from_slice(piece);
    Ok(body.flow_control().release_capacity(piece.len())?)
}

/// Checks `grpc-status` in the trailers, or in the headers of an answer without a body.
fn check_status(headers: &HeaderMap) -> Result<()> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        Some(b"0") => Ok(()),
        status => {
            let text = headers.get("grpc-message").map(|text| String::from_utf8_lossy(text.as_bytes()));
            let status = status.map(String::from_utf8_lossy);
            bail!("status {}: {}", status.unwrap_or_default(), text.unwrap_or_default())
        }
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("requests are small"));
    frame.put_slice(message);
    frame.freeze()
}

fn length(frame: &[u8]) -> Option<usize> {
    let (_, length) = frame.get(..PREFIX_BYTES)?.split_first()?;
    Some(u32::from_be_bytes(length.try_into().ok()?) as usize)
}

fn unframed(frame: &Bytes) -> Result<Bytes> {
    let length = length(frame).context("an answer without a message")?;
    if frame[0] != 0 || frame.len() != PREFIX_BYTES + length {
        bail!("an answer that is not one plain message");
    }
    Ok(frame.slice(PREFIX_BYTES..))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{framed, unframed};

    #[test]
    fn a_message_has_a_flag_and_its_length_in_front() {
        let frame = framed(b"abc");
        assert_eq!(&frame[..], [0, 0, 0, 0, 3, b'a', b'b', b'c']);
        assert_eq!(unframed(&frame).unwrap(), Bytes::from_static(b"abc"));
    }

    #[test]
    fn what_is_compressed_or_longer_than_it_says_is_refused() {
        for bad in [[1, 0, 0, 0, 1, 7].as_slice(), &[0, 0, 0, 0, 1, 7, 7], &[0, 0, 0]] {
            assert!(unframed(&Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }
}
