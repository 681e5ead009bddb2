//! A client with one connection, in frames. Sends only the requests of the test, never pings by itself and
//! never reconnects. Counts every frame in both directions.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use rowlock_env::time;
use rowlock_proto::lock::{Acquire, Claim, Notice, QueuePosition};
use rowlock_proto::request::{Create, PathWatch};
use rowlock_proto::response::ConnectResponse;
use rowlock_proto::{
    Acl, ConnectRequest, CreateMode, ErrorCode, EventType, OpCode, ReplyHeader, Request, Response, SessionId,
    Stat, Version, WatchedEvent, Xid, Zxid, decode,
};

use crate::wire::{Wire, connect_request, resume_request};

/// Longest wait for a reply on a machine that is busy with other tests.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of sessions that must not expire: longer than any test, since the client never pings by itself.
pub const SESSION_MS: i32 = 600_000;

pub struct RawClient {
    pub wire: Wire,
    next_xid: i32,
    /// Requests without a reply yet.
    asked: VecDeque<(Xid, OpCode)>,
    /// The server's response to the handshake.
    pub opened: ConnectResponse,
    /// The highest zxid in a reply.
    pub last_zxid: Zxid,
    /// Number of requests sent, without the handshake.
    pub frames_out: usize,
    /// Number of frames received, without the handshake.
    pub frames_in: usize,
    pub bytes_in: usize,
    /// A frame before the awaited frame fails the test; otherwise the client queues the early frame below.
    strict: bool,
    pub events: VecDeque<WatchedEvent>,
    pub notices: VecDeque<(Zxid, Notice)>,
}

/// A frame from the server, or the end of the connection.
#[derive(Debug)]
pub enum Frame {
    Event(WatchedEvent),
    Notice(Zxid, Notice),
    Reply(ReplyHeader, Result<Response, ErrorCode>),
    Closed,
}

impl RawClient {
    /// Uses a connection with a finished handshake; `opened` is the response. Strict.
    pub fn over(wire: Wire, opened: ConnectResponse) -> RawClient {
        RawClient {
            wire,
            next_xid: 0,
            asked: VecDeque::new(),
            opened,
            last_zxid: Zxid(0),
            frames_out: 0,
            frames_in: 0,
            bytes_in: 0,
            strict: true,
            events: VecDeque::new(),
            notices: VecDeque::new(),
        }
    }

    /// Connects and requests a session; `None` if the server closes the connection without a response.
    /// Strict.
    pub async fn open(address: impl AsRef<str>, request: ConnectRequest) -> Option<RawClient> {
        let open = async {
            let mut wire = Wire::connect(address.as_ref(), REPLY_TIMEOUT).await?;
            let opened = wire.open(&request).await?;
            let last_zxid = request.last_zxid_seen;
            io::Result::Ok(RawClient { last_zxid, ..RawClient::over(wire, opened) })
        };
        time::timeout(REPLY_TIMEOUT, open).await.expect("the server answers in time").ok()
    }

    /// Connects with a new session. Strict.
    pub async fn connect(address: impl AsRef<str>) -> RawClient {
        RawClient::open(address, connect_request(10_000)).await.expect("the server answers")
    }

    /// Connects with a new session. Keeps events and notices that arrive before the awaited frame.
    pub async fn attach(address: impl AsRef<str>, timeout_ms: i32) -> RawClient {
        let client = RawClient::attach_as(address, connect_request(timeout_ms)).await;
        client.expect("the server grants a session")
    }

    /// Reconnects with the same session, like [`RawClient::attach`]; `None` if the session has ended.
    pub async fn resume(&self, address: impl AsRef<str>) -> Option<RawClient> {
        RawClient::attach_as(address, resume_request(&self.opened)).await
    }

    async fn attach_as(address: impl AsRef<str>, request: ConnectRequest) -> Option<RawClient> {
        let client = RawClient::open(address, request).await?;
        (client.session() != SessionId::NONE).then_some(RawClient { strict: false, ..client })
    }

    pub fn session(&self) -> SessionId {
        self.opened.session_id
    }

    /// Returns true if no request is queued and every reply has been received.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.wire.is_idle()
    }

    /// Queues a request; returns the xid of its reply.
    pub fn queue(&mut self, request: &Request) -> Xid {
        let xid = match request {
            Request::Ping => Xid::PING,
            Request::Auth { .. } => Xid::AUTH,
            Request::SetWatches(_) | Request::SetWatches2(_) => Xid::SET_WATCHES,
            _ => {
                self.next_xid = self.next_xid.wrapping_add(1) & i32::MAX;
                Xid(self.next_xid)
            }
        };
        // The reply to an envelope is the reply to its content.
        let content = if let Request::Tagged { request, .. } = request { request } else { request };
        self.asked.push_back((xid, content.opcode()));
        self.wire.queue_request(xid, request);
        self.frames_out += 1;
        xid
    }

    /// Sends a request; returns the xid of its reply. A broken connection shows in the missing reply.
    pub async fn send(&mut self, request: Request) -> Xid {
        let xid = self.queue(&request);
        let _ = self.wire.flush().await;
        xid
    }

    /// Sends arbitrary bytes, possibly not a request; `reply` has the opcode for decoding an expected reply.
    pub async fn send_raw(&mut self, bytes: &[u8], reply: Option<(Xid, OpCode)>) {
        self.asked.extend(reply);
        self.wire.send(bytes).await.expect("sent");
    }

    /// Receives the next frame of any kind. Cancel safe.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the connection; the connection is broken; the frame cannot be decoded or
    /// replies to no request.
    pub async fn receive(&mut self) -> io::Result<Frame> {
        let mut bytes = self.wire.frame().await?;
        self.frames_in += 1;
        self.bytes_in += bytes.len();
        let header = decode::reply_header(&mut bytes).map_err(io::Error::other)?;
        let frame = match header.xid {
            Xid::EVENT => {
                let event = decode::event(&mut bytes).map_err(io::Error::other)?;
                Frame::Event(WatchedEvent { zxid: header.zxid, ..event })
            }
            Xid::NOTICE => Frame::Notice(header.zxid, decode::notice(&mut bytes).map_err(io::Error::other)?),
            xid => {
                let asked = self.asked.iter().position(|(asked, _)| *asked == xid);
                let Some((_, opcode)) = asked.and_then(|at| self.asked.remove(at)) else {
                    return Err(io::Error::other(format!("a reply to request {xid}, which was not sent")));
                };
                self.last_zxid = self.last_zxid.max(header.zxid);
                let body = match header.err {
                    Some(code) => Err(code),
                    None => Ok(decode::response(&mut bytes, opcode).map_err(io::Error::other)?),
                };
                Frame::Reply(header, body)
            }
        };
        if bytes.is_empty() { Ok(frame) } else { Err(io::Error::other(format!("excess bytes: {bytes:?}"))) }
    }

    /// Receives the next frame of any kind, which must arrive in time and be valid.
    pub async fn next(&mut self) -> Frame {
        match time::timeout(REPLY_TIMEOUT, self.receive()).await.expect("a frame in time") {
            Ok(frame) => frame,
            Err(error) if error.kind() == io::ErrorKind::Other => panic!("an invalid frame: {error}"),
            Err(_) => Frame::Closed,
        }
    }

    /// Receives the next reply; `None` at the end of the connection.
    pub async fn next_reply(&mut self) -> Option<(ReplyHeader, Result<Response, ErrorCode>)> {
        loop {
            match self.next().await {
                Frame::Reply(header, body) => return Some((header, body)),
                Frame::Closed => return None,
                Frame::Event(event) if !self.strict => self.events.push_back(event),
                Frame::Notice(zxid, notice) if !self.strict => self.notices.push_back((zxid, notice)),
                other => panic!("a reply was expected: {other:?}"),
            }
        }
    }

    pub async fn reply(&mut self) -> (ReplyHeader, Result<Response, ErrorCode>) {
        self.next_reply().await.expect("the connection stays")
    }

    /// Receives the reply to the oldest request; `None` at the end of the connection.
    pub async fn answer(&mut self, xid: Xid) -> Option<Result<Response, ErrorCode>> {
        let (header, body) = self.next_reply().await?;
        assert_eq!(header.xid, xid, "replies arrive in the order of their requests");
        Some(body)
    }

    pub async fn call(&mut self, request: Request) -> Result<Response, ErrorCode> {
        let xid = self.send(request).await;
        self.answer(xid).await.expect("the connection stays")
    }

    /// Waits for a watch event; returns its type and path.
    pub async fn event(&mut self) -> (EventType, String) {
        loop {
            if let Some(event) = self.events.pop_front() {
                return (event.event_type, event.path);
            }
            match self.next().await {
                Frame::Event(event) => self.events.push_back(event),
                Frame::Notice(zxid, notice) if !self.strict => self.notices.push_back((zxid, notice)),
                other => panic!("an event was expected: {other:?}"),
            }
        }
    }

    pub async fn notice(&mut self) -> (Zxid, Notice) {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return notice;
            }
            match self.next().await {
                Frame::Notice(zxid, notice) => self.notices.push_back((zxid, notice)),
                Frame::Event(event) if !self.strict => self.events.push_back(event),
                other => panic!("a notice was expected: {other:?}"),
            }
        }
    }

    /// Waits for the end of the connection, before which no frame may arrive.
    pub async fn closed(&mut self) {
        let frame = self.next().await;
        assert!(matches!(frame, Frame::Closed), "the end of the connection was expected: {frame:?}");
    }
}

/// Single requests and their results.
impl RawClient {
    /// Acquires the rights of the superuser with the password `test`.
    pub async fn become_superuser(&mut self) {
        self.authenticate("super:test").await;
    }

    /// Authenticates by digest as `user:password`.
    pub async fn authenticate(&mut self, user: &str) {
        let (auth_type, scheme, auth) = (0, "digest".to_owned(), user.to_owned().into());
        self.call(Request::Auth { auth_type, scheme, auth }).await.expect("digest is understood");
    }

    pub async fn acquire(&mut self, acquire: Acquire) -> QueuePosition {
        self.acquire_all(vec![acquire]).await.remove(0)
    }

    pub async fn acquire_all(&mut self, all: Vec<Acquire>) -> Vec<QueuePosition> {
        match self.call(Request::Acquire(all.into())).await {
            Ok(Response::QueuePositions(positions)) => positions.into_vec(),
            other => panic!("not queue positions: {other:?}"),
        }
    }

    pub async fn release(&mut self, claim: &Claim) -> bool {
        self.held(Request::Release([claim.clone()].into())).await
    }

    pub async fn verify(&mut self, claim: &Claim) -> bool {
        self.held(Request::Verify([claim.clone()].into())).await
    }

    /// Sends a release, verify or forceRelease of one claim.
    pub async fn held(&mut self, request: Request) -> bool {
        match self.call(request).await {
            Ok(Response::Held(held)) if held.len() == 1 => held[0],
            other => panic!("not one answer: {other:?}"),
        }
    }

    pub async fn create(&mut self, path: &str, data: &str, mode: CreateMode) -> Result<String, ErrorCode> {
        let (data, acl) = (Some(data.to_owned().into()), Some(Acl::shared_open()));
        let create = Create { path: path.to_owned(), data, acl, flags: mode.flags() };
        match self.call(Request::Create(create)).await? {
            Response::Path(path) => Ok(path),
            other => panic!("not a path: {other:?}"),
        }
    }

    pub async fn delete(&mut self, path: &str) -> Result<(), ErrorCode> {
        self.call(Request::Delete { path: path.to_owned(), version: Version::ANY }).await.map(drop)
    }

    pub async fn data(&mut self, path: &str, watch: bool) -> Result<(bytes::Bytes, Stat), ErrorCode> {
        match self.call(Request::GetData(PathWatch { path: path.to_owned(), watch })).await? {
            Response::Data(data, stat) => Ok((data.unwrap_or_default(), stat)),
            other => panic!("not data: {other:?}"),
        }
    }

    /// Returns the names of the children; none if the znode does not exist. Syncs first: another session may
    /// have used another node.
    pub async fn children(&mut self, path: &str) -> Vec<String> {
        self.call(Request::Sync(path.to_owned())).await.expect("sync");
        match self.call(Request::GetChildren(PathWatch { path: path.to_owned(), watch: false })).await {
            Ok(Response::Children(names)) => names,
            Err(ErrorCode::NoNode) => Vec::new(),
            other => panic!("not children: {other:?}"),
        }
    }

    pub async fn close(mut self) {
        self.call(Request::CloseSession).await.expect("sessions may be closed");
    }
}

/// Returns an acquire that waits for an exclusive lock.
pub fn exclusive(lock: &str, prefix: &str) -> Acquire {
    Acquire::exclusive(lock, prefix)
}

#[track_caller]
pub fn held(position: QueuePosition) -> Claim {
    match position {
        QueuePosition::Held(claim) => claim,
        other => panic!("not held: {other:?}"),
    }
}

/// Returns the claim of a waiting position, and the number of positions ahead.
#[track_caller]
pub fn waiting(position: QueuePosition) -> (Claim, u32) {
    match position {
        QueuePosition::Waiting { claim, ahead, .. } => (claim, ahead),
        other => panic!("not waiting: {other:?}"),
    }
}
