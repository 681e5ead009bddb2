//! A client for tests: sends frames and reads what comes, in the order in which it comes.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_proto::lock::Notice;
use rowlock_proto::request::{ConnectRequest, Create, PathWatch, SetData};
use rowlock_proto::response::{ConnectResponse, ReplyHeader, Response};
use rowlock_proto::{
    Acl, CreateMode, ErrorCode, EventType, OpCode, Request, RequestFrame, SessionId, Version, Xid, Zxid,
    decode, encode, frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::node::Node;

/// Nothing on loopback takes so long; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub struct Client {
    stream: Stream,
    input: BytesMut,
    next_xid: i32,
    /// What was asked for and is not answered yet.
    asked: VecDeque<(Xid, OpCode)>,
    /// Bytes of all frames that have come.
    pub received: usize,
    /// The answer to the handshake.
    pub opened: ConnectResponse,
}

/// What a server sends behind the handshake.
#[derive(Debug)]
pub enum Frame {
    Event { zxid: Zxid, event_type: EventType, path: String },
    Notice { zxid: Zxid, notice: Notice },
    Reply { header: ReplyHeader, body: Option<Response> },
    Closed,
}

/// A request for a session: none yet, or the one given.
pub fn connect_request(session: Option<&ConnectResponse>) -> ConnectRequest {
    ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: Zxid(0),
        timeout_ms: 10_000,
        session_id: session.map_or(SessionId::NONE, |s| s.session_id),
        password: session.map_or(Bytes::from_static(&[0; 16]), |s| s.password.clone()),
        read_only: Some(false),
    }
}

pub fn create(path: &str, mode: CreateMode) -> Request {
    let (path, data) = (path.to_owned(), Some(Bytes::from_static(b"data")));
    Request::Create(Create { path, data, acl: Some(Acl::shared_open()), flags: mode.flags() })
}

pub fn set(path: &str, data: &str) -> Request {
    let data = Some(Bytes::copy_from_slice(data.as_bytes()));
    Request::SetData(SetData { path: path.to_owned(), data, version: Version::ANY })
}

pub fn delete(path: &str) -> Request {
    Request::Delete { path: path.to_owned(), version: Version::ANY }
}

pub fn watched(path: &str) -> PathWatch {
    PathWatch { path: path.to_owned(), watch: true }
}

pub fn unwatched(path: &str) -> PathWatch {
    PathWatch { path: path.to_owned(), watch: false }
}

impl Client {
    /// A new session.
    pub async fn connect(node: &Node) -> Client {
        Client::open(node, connect_request(None)).await.expect("a session")
    }

    /// What the request asks for. `None`: closed without a reply.
    pub async fn open(node: &Node, request: ConnectRequest) -> Option<Client> {
        let mut out = BytesMut::new();
        encode::connect_request(&request, &mut out);
        Client::open_raw(node, &out).await
    }

    /// Sends the bytes and reads the answer to a handshake.
    pub async fn open_raw(node: &Node, bytes: &[u8]) -> Option<Client> {
        let mut stream = raw(node).await;
        stream.write_all(bytes).await.expect("sent");
        let opened = ConnectResponse {
            protocol_version: 0,
            timeout_ms: 0,
            session_id: SessionId::NONE,
            password: Bytes::new(),
            read_only: None,
        };
        let mut client = Client {
            stream,
            input: BytesMut::new(),
            next_xid: 0,
            asked: VecDeque::new(),
            received: 0,
            opened,
        };
        let reply = client.bytes().await?;
        client.opened = decode::connect_response(reply).expect("a handshake's answer");
        Some(client)
    }

    /// Sends a request.
    pub async fn send(&mut self, request: Request) -> Xid {
        let xid = match &request {
            Request::Ping => Xid::PING,
            Request::Auth { .. } => Xid::AUTH,
            Request::SetWatches(_) | Request::SetWatches2(_) => Xid::SET_WATCHES,
            _ => {
                self.next_xid += 1;
                Xid(self.next_xid)
            }
        };
        // An envelope is answered as what is in it.
        let asked = if let Request::Tagged { request, .. } = &request { request } else { &request };
        self.asked.push_back((xid, asked.opcode()));
        let mut out = BytesMut::new();
        encode::request(&RequestFrame { xid, request }, &mut out);
        self.stream.write_all(&out).await.expect("sent");
        xid
    }

    /// Sends a request to a node that may hang up over it.
    pub async fn try_send(&mut self, request: Request) {
        let mut out = BytesMut::new();
        self.next_xid += 1;
        encode::request(&RequestFrame { xid: Xid(self.next_xid), request }, &mut out);
        let _ = self.stream.write_all(&out).await;
    }

    /// Sends what need not be a request; the answer is read as one to `opcode`.
    pub async fn send_raw(&mut self, bytes: &[u8], answer: Option<(Xid, OpCode)>) {
        self.asked.extend(answer);
        self.stream.write_all(bytes).await.expect("sent");
    }

    /// The next frame of any kind.
    pub async fn next(&mut self) -> Frame {
        let Some(mut bytes) = self.bytes().await else { return Frame::Closed };
        let header = decode::reply_header(&mut bytes).expect("a header");
        if header.xid == Xid::EVENT {
            let event = decode::event(&mut bytes).expect("an event");
            return Frame::Event { zxid: header.zxid, event_type: event.event_type, path: event.path };
        }
        if header.xid == Xid::NOTICE {
            let notice = decode::notice(&mut bytes).expect("a notice");
            return Frame::Notice { zxid: header.zxid, notice };
        }
        let at = self.asked.iter().position(|(xid, _)| *xid == header.xid).expect("an answer to a question");
        let (_, opcode) = self.asked.remove(at).expect("found");
        let body = match header.err {
            None => Some(decode::response(&mut bytes, opcode).expect("a body")),
            Some(_) => None,
        };
        assert!(bytes.is_empty(), "nothing behind the body: {bytes:?}");
        Frame::Reply { header, body }
    }

    /// The next frame, which must be a reply.
    pub async fn reply(&mut self) -> (ReplyHeader, Result<Response, ErrorCode>) {
        match self.next().await {
            Frame::Reply { header, body } => {
                (header, header.err.map_or_else(|| Ok(body.expect("no error")), Err))
            }
            other => panic!("a reply was expected: {other:?}"),
        }
    }

    /// The next frame, which must be an event.
    pub async fn event(&mut self) -> (EventType, String) {
        match self.next().await {
            Frame::Event { event_type, path, .. } => (event_type, path),
            other => panic!("an event was expected: {other:?}"),
        }
    }

    /// The next frame, which must be a notice.
    pub async fn notice(&mut self) -> (Zxid, Notice) {
        match self.next().await {
            Frame::Notice { zxid, notice } => (zxid, notice),
            other => panic!("a notice was expected: {other:?}"),
        }
    }

    /// Sends a request and reads its reply, before which nothing else may come.
    pub async fn call(&mut self, request: Request) -> Result<Response, ErrorCode> {
        let xid = self.send(request).await;
        let (header, result) = self.reply().await;
        assert_eq!(header.xid, xid);
        result
    }

    /// The server closes without saying anything more.
    pub async fn closed(&mut self) {
        match self.next().await {
            Frame::Closed => {}
            other => panic!("a close was expected: {other:?}"),
        }
    }

    async fn bytes(&mut self) -> Option<Bytes> {
        let all = async {
            loop {
                if let Some(frame) = frame::split(&mut self.input, usize::MAX >> 1).expect("a frame") {
                    self.received += frame.len();
                    return Some(frame);
                }
                match self.stream.read_buf(&mut self.input).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        };
        time::timeout(PATIENCE, all).await.expect("an answer in time")
    }
}

/// A socket to the node.
pub async fn raw(node: &Node) -> Stream {
    Stream::connect(&node.addr, PATIENCE).await.expect("connects")
}

/// Everything up to the end of the stream.
pub async fn rest(stream: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset is an end like any other here.
    let _ = time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("an end in time");
    all
}
