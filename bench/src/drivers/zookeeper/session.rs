//! A session of the ZooKeeper protocol over one TCP connection: one awaited request at a time, and watch
//! events.
//!
//! The calling task reads and writes the socket itself, without a second task between. It never reconnects: a
//! broken connection makes a trial void.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use rowlock_proto::{
    ConnectRequest, ErrorCode, EventType, OpCode, ReplyHeader, Request, RequestFrame, Response, SessionId,
    WatchedEvent, Xid, Zxid, decode, encode, frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What a server may send in one frame: a list of ten thousand names fits.
const FRAME_MAX_BYTES: usize = 16 << 20;
/// How long a server may take to answer the handshake.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// An open session.
pub struct Session {
    stream: TcpStream,
    input: BytesMut,
    output: BytesMut,
    xid: i32,
    /// Requests whose replies no caller awaits, but which must not be refused.
    posted: VecDeque<(Xid, OpCode)>,
    /// Events that came while a reply was awaited.
    events: VecDeque<WatchedEvent>,
    /// Silence after which a heartbeat is sent.
    heartbeat: Duration,
}

/// A frame from the server.
enum Incoming {
    Reply(ReplyHeader, Bytes),
    Event(WatchedEvent),
    Pong,
}

impl Session {
    /// Opens a new session with one server.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub async fn open(address: &str, session_timeout: Duration) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let mut session = Session {
            stream,
            input: BytesMut::with_capacity(4096),
            output: BytesMut::with_capacity(512),
            xid: 0,
            posted: VecDeque::new(),
            events: VecDeque::new(),
            heartbeat: session_timeout / 3,
        };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: Zxid(0),
            timeout_ms: i32::try_from(session_timeout.as_millis())?,
            session_id: SessionId::NONE,
            password: Bytes::from_static(&[0; 16]),
            read_only: Some(false),
        };
        encode::connect_request(&request, &mut session.output);
        session.flush().await?;
        let frame = timeout(WAIT_MAX, session.frame()).await.context("no answer to the handshake")?;
        let frame = frame.with_context(|| format!("opening a session with {address}"))?;
        let response = decode::connect_response(frame)?;
        if response.timeout_ms <= 0 {
            bail!("{address} refused the session");
        }
        session.heartbeat = Duration::from_millis(response.timeout_ms as u64) / 3;
        Ok(session)
    }

    /// The connection for another user, which sends no heartbeats of its own.
    ///
    /// # Errors
    /// A reply has not been received.
    pub fn into_stream(self) -> Result<TcpStream> {
        ensure!(self.input.is_empty() && self.posted.is_empty(), "a reply was not received");
        Ok(self.stream)
    }

    /// A request and its reply.
    ///
    /// # Errors
    /// The connection broke. An error code is an answer.
    pub async fn call(&mut self, request: Request) -> Result<Result<Response, ErrorCode>> {
        let (xid, opcode) = self.put(request);
        self.flush().await?;
        loop {
            match self.receive().await.with_context(|| format!("waiting for the reply to {opcode:?}"))? {
                Incoming::Reply(header, body) if header.xid == xid => return reply(header, body, opcode),
                Incoming::Reply(header, body) => self.settle(header, body)?,
                Incoming::Event(event) => self.events.push_back(event),
                Incoming::Pong => {}
            }
        }
    }

    /// A request that is sent with the next one. If it is refused, the next call fails.
    pub fn post(&mut self, request: Request) {
        let posted = self.put(request);
        self.posted.push_back(posted);
    }

    fn put(&mut self, request: Request) -> (Xid, OpCode) {
        let opcode = request.opcode();
        self.xid = self.xid.wrapping_add(1) & i32::MAX;
        let xid = Xid(self.xid);
        encode::request(&RequestFrame { xid, request }, &mut self.output);
        (xid, opcode)
    }

    /// Replies come in the order of the requests.
    fn settle(&mut self, header: ReplyHeader, body: Bytes) -> Result<()> {
        let Some((_, opcode)) = self.posted.pop_front().filter(|(xid, _)| *xid == header.xid) else {
            bail!("a reply to request {}, which nobody awaits", header.xid)
        };
        reply(header, body, opcode)?.with_context(|| format!("a posted {opcode:?} was refused"))?;
        Ok(())
    }

    /// Waits until `path` is reported as deleted. Heartbeats go out meanwhile.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn deleted(&mut self, path: &str) -> Result<()> {
        let is_it = |event: &WatchedEvent| event.event_type == EventType::NodeDeleted && event.path == path;
        while let Some(event) = self.events.pop_front() {
            if is_it(&event) {
                return Ok(());
            }
        }
        loop {
            match timeout(self.heartbeat, self.receive()).await {
                Err(_) => self.ping().await?,
                Ok(incoming) => match incoming? {
                    Incoming::Event(event) if is_it(&event) => return Ok(()),
                    Incoming::Event(_) | Incoming::Pong => {}
                    Incoming::Reply(header, _) => bail!("a reply to request {}", header.xid),
                },
            }
        }
    }

    /// Does nothing but heartbeats, for ever.
    ///
    /// # Errors
    /// The connection broke.
    ///
    /// # Cancel safety
    /// The session can be used when the future is dropped.
    pub async fn stay(&mut self) -> Result<()> {
        loop {
            match timeout(self.heartbeat, self.receive()).await {
                Err(_) => self.ping().await?,
                Ok(incoming) => match incoming? {
                    Incoming::Event(event) => self.events.push_back(event),
                    Incoming::Pong => {}
                    Incoming::Reply(header, _) => bail!("a reply to request {}", header.xid),
                },
            }
        }
    }

    /// Ends the session in good order.
    ///
    /// # Errors
    /// The connection broke before the answer.
    pub async fn close(mut self) -> Result<()> {
        self.call(Request::CloseSession).await?.context("closing the session")?;
        Ok(())
    }

    /// The answer comes when it comes.
    async fn ping(&mut self) -> Result<()> {
        encode::request(&RequestFrame { xid: Xid::PING, request: Request::Ping }, &mut self.output);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// Cancel safe: what has come stays in the buffer.
    async fn receive(&mut self) -> Result<Incoming> {
        incoming(self.frame().await?)
    }

    async fn frame(&mut self) -> Result<Bytes> {
        loop {
            if let Some(frame) = frame::split(&mut self.input, FRAME_MAX_BYTES)? {
                return Ok(frame);
            }
            self.input.reserve(1024);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                bail!("the server closed the connection");
            }
        }
    }
}

/// A reply's header and what follows it.
pub type Frame = (ReplyHeader, Bytes);

/// The next reply, for a connection without watches: answers to heartbeats are left out.
///
/// # Errors
/// What came is no reply.
pub fn next_reply(input: &mut BytesMut) -> Result<Option<Frame>> {
    while let Some(frame) = frame::split(input, FRAME_MAX_BYTES)? {
        match incoming(frame)? {
            Incoming::Reply(header, body) => return Ok(Some((header, body))),
            Incoming::Event(event) => bail!("an event without a watch: {event:?}"),
            Incoming::Pong => {}
        }
    }
    Ok(None)
}

fn incoming(mut frame: Bytes) -> Result<Incoming> {
    let header = decode::reply_header(&mut frame)?;
    Ok(match header.xid {
        Xid::EVENT => Incoming::Event(decode::event(&mut frame)?),
        Xid::PING => Incoming::Pong,
        _ => Incoming::Reply(header, frame),
    })
}

/// What a reply to that kind of request says.
///
/// # Errors
/// What came is no such reply.
pub fn reply(header: ReplyHeader, mut body: Bytes, opcode: OpCode) -> Result<Result<Response, ErrorCode>> {
    match header.err {
        Some(code) => Ok(Err(code)),
        None => Ok(Ok(decode::response(&mut body, opcode)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, ErrorCode, EventType, Incoming, OpCode, Response, incoming, reply};

    /// xid, zxid and error of a reply's header.
    const CREATED: &[u8] = b"\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x02/a";
    const NO_NODE: &[u8] = b"\0\0\0\x07\0\0\0\0\0\0\0\x09\xff\xff\xff\x9b";
    const DELETED: &[u8] =
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x02/a";
    const PONG: &[u8] = b"\xff\xff\xff\xfe\0\0\0\0\0\0\0\x09\0\0\0\0";

    #[test]
    fn a_frame_is_a_reply_or_an_event_or_a_heartbeats_answer() {
        let Incoming::Reply(header, body) = incoming(Bytes::from_static(CREATED)).unwrap() else {
            panic!("no reply")
        };
        assert_eq!(header.xid.0, 7);
        assert_eq!(reply(header, body, OpCode::Create).unwrap(), Ok(Response::Path("/a".to_owned())));
        let Incoming::Reply(header, body) = incoming(Bytes::from_static(NO_NODE)).unwrap() else {
            panic!("no reply")
        };
        assert_eq!(reply(header, body, OpCode::Exists).unwrap(), Err(ErrorCode::NoNode));
        let Incoming::Event(event) = incoming(Bytes::from_static(DELETED)).unwrap() else {
            panic!("no event")
        };
        assert_eq!((event.event_type, event.path.as_str()), (EventType::NodeDeleted, "/a"));
        assert!(matches!(incoming(Bytes::from_static(PONG)).unwrap(), Incoming::Pong));
    }
}
