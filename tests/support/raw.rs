//! A client with one connection, in raw frames: it counts and keeps every frame in both directions. It never
//! pings by itself, never reconnects, and sends only what the test asks for.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_proto::frame;
use rowlock_proto::lock::{Acquire, Claim, Notice, PlaceState};
use rowlock_proto::request::{Create, PathWatch};
use rowlock_proto::{
    Acl, ConnectRequest, CreateMode, ErrorCode, OpCode, ReplyHeader, Request, RequestFrame, Response,
    SessionId, Stat, Version, WatchedEvent, Xid, Zxid, decode, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::secs;

/// How long an answer may take on a machine that is busy with other things.
const ANSWER: Duration = secs(120);
/// The answer to the largest request may be larger than that.
const ANSWER_MAX_BYTES: usize = 64 << 20;
/// Of sessions that are not to expire. They send nothing by themselves, so this is longer than any test
/// takes, however busy the machine is.
pub const SESSION_MS: i32 = 600_000;

pub struct Raw {
    stream: TcpStream,
    input: BytesMut,
    xid: i32,
    pub session: SessionId,
    pub password: Bytes,
    pub timeout_ms: i32,
    /// After the handshake.
    pub frames_out: usize,
    pub frames_in: usize,
    pub events: VecDeque<WatchedEvent>,
    pub notices: VecDeque<Notice>,
}

impl Raw {
    /// A connection with a new session.
    pub async fn attach(addr: &str, timeout_ms: i32) -> Raw {
        let raw = Raw::try_attach(addr, timeout_ms, SessionId(0), Bytes::from_static(&[0; 16])).await;
        raw.expect("a session is opened")
    }

    /// Another connection of the same session; nothing if it has ended.
    pub async fn resume(&self, addr: &str) -> Option<Raw> {
        Raw::try_attach(addr, self.timeout_ms, self.session, self.password.clone()).await
    }

    async fn try_attach(addr: &str, timeout_ms: i32, session: SessionId, password: Bytes) -> Option<Raw> {
        let stream = TcpStream::connect(addr).await.ok()?;
        stream.set_nodelay(true).unwrap();
        let mut raw = Raw {
            stream,
            input: BytesMut::new(),
            xid: 0,
            session,
            password: password.clone(),
            timeout_ms,
            frames_out: 0,
            frames_in: 0,
            events: VecDeque::new(),
            notices: VecDeque::new(),
        };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: Zxid(0),
            timeout_ms,
            session_id: session,
            password,
            read_only: Some(false),
        };
        let mut out = BytesMut::new();
        encode::connect_request(&request, &mut out);
        raw.stream.write_all(&out).await.ok()?;
        let response = decode::connect_response(raw.frame().await?).unwrap();
        if response.session_id == SessionId(0) {
            return None;
        }
        (raw.session, raw.password) = (response.session_id, response.password);
        raw.timeout_ms = response.timeout_ms;
        raw.frames_in = 0;
        Some(raw)
    }

    /// One frame out.
    pub async fn send(&mut self, request: Request) -> (Xid, OpCode) {
        self.xid += 1;
        let xid = if matches!(request, Request::Auth { .. }) { Xid::AUTH } else { Xid(self.xid) };
        let opcode = match &request {
            Request::Tagged { request, .. } => request.opcode(),
            request => request.opcode(),
        };
        let mut out = BytesMut::new();
        encode::request(&RequestFrame { xid, request }, &mut out);
        // A server that has just been killed is noticed where the answer is missing.
        let _ = self.stream.write_all(&out).await;
        self.frames_out += 1;
        (xid, opcode)
    }

    /// The answer to a request; nothing if the connection ends first.
    pub async fn answer(&mut self, (xid, opcode): (Xid, OpCode)) -> Option<Result<Response, ErrorCode>> {
        loop {
            let mut frame = self.frame().await?;
            let header = decode::reply_header(&mut frame).unwrap();
            if self.is_unasked(header, &mut frame) {
                continue;
            }
            assert_eq!(header.xid, xid, "answers come in order");
            return Some(match header.err {
                Some(code) => Err(code),
                None => Ok(decode::response(&mut frame, opcode).unwrap()),
            });
        }
    }

    fn is_unasked(&mut self, header: ReplyHeader, frame: &mut Bytes) -> bool {
        match header.xid {
            Xid::NOTICE => self.notices.push_back(decode::notice(frame).unwrap()),
            Xid::EVENT => {
                let event = decode::event(frame).unwrap();
                self.events.push_back(WatchedEvent { zxid: header.zxid, ..event });
            }
            _ => return false,
        }
        true
    }

    /// The next frame, whatever it is; nothing at the end of the connection.
    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = frame::split(&mut self.input, ANSWER_MAX_BYTES).unwrap() {
                self.frames_in += 1;
                return Some(frame);
            }
            let read = tokio::time::timeout(ANSWER, self.stream.read_buf(&mut self.input));
            match read.await.expect("an answer in time") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub async fn call(&mut self, request: Request) -> Result<Response, ErrorCode> {
        let sent = self.send(request).await;
        self.answer(sent).await.expect("the connection stays")
    }

    /// Waits for a notice.
    pub async fn notice(&mut self) -> Notice {
        while self.notices.is_empty() {
            self.unasked().await;
        }
        self.notices.pop_front().unwrap()
    }

    /// Waits for a watch event.
    pub async fn event(&mut self) -> WatchedEvent {
        while self.events.is_empty() {
            self.unasked().await;
        }
        self.events.pop_front().unwrap()
    }

    async fn unasked(&mut self) {
        let mut frame = self.frame().await.expect("the connection stays");
        let header = decode::reply_header(&mut frame).unwrap();
        assert!(self.is_unasked(header, &mut frame), "an answer that nobody waits for: {header:?}");
    }

    /// Takes the rights of the superuser whose password is `test`.
    pub async fn become_superuser(&mut self) {
        let auth = Bytes::from_static(b"super:test");
        let request = Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth };
        let sent = self.send(request).await;
        self.answer(sent).await.expect("the connection stays").unwrap();
    }

    /// Proves to be this user, by digest.
    pub async fn prove(&mut self, user: &str) {
        let auth = Bytes::from(format!("{user}:password"));
        let request = Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth };
        let sent = self.send(request).await;
        self.answer(sent).await.expect("the connection stays").unwrap();
    }

    /// acquire of one lock.
    pub async fn acquire(&mut self, acquire: Acquire) -> PlaceState {
        self.acquire_all(vec![acquire]).await.remove(0)
    }

    pub async fn acquire_all(&mut self, all: Vec<Acquire>) -> Vec<PlaceState> {
        match self.call(Request::Acquire(all.into())).await {
            Ok(Response::PlaceStates(place_states)) => place_states,
            other => panic!("not place states: {other:?}"),
        }
    }

    /// release of one claim.
    pub async fn release(&mut self, claim: &Claim) -> bool {
        self.held(Request::Release([claim.clone()].into())).await
    }

    /// verify of one claim.
    pub async fn verify(&mut self, claim: &Claim) -> bool {
        self.held(Request::Verify([claim.clone()].into())).await
    }

    /// The single answer to release, verify, forceRelease.
    pub async fn held(&mut self, request: Request) -> bool {
        match self.call(request).await {
            Ok(Response::Held(held)) if held.len() == 1 => held[0],
            other => panic!("not one answer: {other:?}"),
        }
    }

    pub async fn create(&mut self, path: &str, data: &str, mode: CreateMode) -> Result<String, ErrorCode> {
        let data = Some(Bytes::copy_from_slice(data.as_bytes()));
        let create =
            Create { path: path.to_owned(), data, acl: Some(Acl::shared_open()), flags: mode.flags() };
        match self.call(Request::Create(create)).await? {
            Response::Path(path) => Ok(path),
            other => panic!("not a path: {other:?}"),
        }
    }

    pub async fn delete(&mut self, path: &str) -> Result<(), ErrorCode> {
        self.call(Request::Delete { path: path.to_owned(), version: Version::ANY }).await.map(drop)
    }

    pub async fn data(&mut self, path: &str, watch: bool) -> Result<(Bytes, Stat), ErrorCode> {
        match self.call(Request::GetData(PathWatch { path: path.to_owned(), watch })).await? {
            Response::Data(data, stat) => Ok((data.unwrap_or_default(), stat)),
            other => panic!("not data: {other:?}"),
        }
    }

    /// Names of the children; none if there is no such znode.
    pub async fn children(&mut self, path: &str) -> Vec<String> {
        // This node may be behind that of another session.
        self.call(Request::Sync(path.to_owned())).await.expect("sync");
        match self.call(Request::GetChildren(PathWatch { path: path.to_owned(), watch: false })).await {
            Ok(Response::Children(names)) => names,
            Err(ErrorCode::NoNode) => Vec::new(),
            other => panic!("not children: {other:?}"),
        }
    }

    /// Ends the connection, as the death of the process would; the session stays.
    pub async fn hang_up(&mut self) {
        // It may have ended already.
        let _ = self.stream.shutdown().await;
    }

    /// Ends the session.
    pub async fn close(mut self) {
        self.call(Request::CloseSession).await.expect("sessions may be closed");
    }
}

/// An acquire that waits for an exclusive lock.
pub fn exclusive(lock: &str, prefix: &str) -> Acquire {
    Acquire::exclusive(lock, prefix)
}

/// The claim of a place that is held.
#[track_caller]
pub fn held(place_state: PlaceState) -> Claim {
    match place_state {
        PlaceState::Held(claim) => claim,
        other => panic!("not held: {other:?}"),
    }
}

/// The claim of a place that waits.
#[track_caller]
pub fn waiting(place_state: PlaceState) -> (Claim, u32) {
    match place_state {
        PlaceState::Waiting { claim, ahead, .. } => (claim, ahead),
        other => panic!("not waiting: {other:?}"),
    }
}
