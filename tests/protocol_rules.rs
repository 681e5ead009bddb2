//! session-order, read-your-writes, monotonic-reads: rules of the protocol that only several real nodes can
//! break. The test sends raw frames, so that no client library hides a fault.

use bytes::{Bytes, BytesMut};
use rowlock_proto::request::{ConnectRequest, Create, Op, PathWatch, SetData};
use rowlock_proto::response::{ConnectResponse, OpResult};
use rowlock_proto::{
    Acl, CreateMode, ErrorCode, ReplyHeader, Request, RequestFrame, Response, SessionId, Version, Xid, Zxid,
    decode, encode, frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::cluster::{Cluster, FAST};

/// A session on one connection.
struct Raw {
    stream: TcpStream,
    buffer: BytesMut,
    session: ConnectResponse,
    xid: i32,
    seen: Zxid,
}

impl Raw {
    async fn open(addr: &str) -> Raw {
        Raw::attach(addr, SessionId::NONE, Bytes::from_static(&[0; 16]), Zxid(0)).await
    }

    /// The same session on another node, with what it has seen.
    async fn move_to(self, addr: &str) -> Raw {
        let Raw { session, seen, stream, .. } = self;
        drop(stream);
        Raw::attach(addr, session.session_id, session.password, seen).await
    }

    async fn attach(addr: &str, session_id: SessionId, password: Bytes, seen: Zxid) -> Raw {
        let stream = TcpStream::connect(addr).await.unwrap();
        let hello = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: seen,
            timeout_ms: 40_000,
            session_id,
            password,
            read_only: Some(false),
        };
        let session = ConnectResponse {
            protocol_version: 0,
            timeout_ms: 0,
            session_id,
            password: Bytes::new(),
            read_only: None,
        };
        let mut raw = Raw { stream, buffer: BytesMut::new(), session, xid: 0, seen };
        let mut out = BytesMut::new();
        encode::connect_request(&hello, &mut out);
        raw.stream.write_all(&out).await.unwrap();
        raw.session = decode::connect_response(raw.next().await).unwrap();
        assert_ne!(raw.session.session_id, SessionId::NONE, "the session was refused");
        raw
    }

    async fn next(&mut self) -> Bytes {
        loop {
            if let Some(frame) = frame::split(&mut self.buffer, frame::DEFAULT_MAX_BYTES).unwrap() {
                return frame;
            }
            assert_ne!(
                self.stream.read_buf(&mut self.buffer).await.unwrap(),
                0,
                "the node closed the connection"
            );
        }
    }

    async fn send(&mut self, request: Request) -> (ReplyHeader, Option<Response>) {
        self.xid += 1;
        let opcode = request.opcode();
        let mut out = BytesMut::new();
        encode::request(&RequestFrame { xid: Xid(self.xid), request }, &mut out);
        self.stream.write_all(&out).await.unwrap();
        let mut frame = self.next().await;
        let header = decode::reply_header(&mut frame).unwrap();
        assert_eq!(header.xid, Xid(self.xid));
        assert!(header.zxid >= self.seen, "the zxid of replies went back");
        self.seen = header.zxid;
        let body = header.err.is_none().then(|| decode::response(&mut frame, opcode).unwrap());
        (header, body)
    }
}

fn create(path: &str) -> Create {
    let (data, acl) = (Some(Bytes::from_static(b"v")), Some(Acl::shared_open()));
    Create { path: path.to_owned(), data, acl, flags: CreateMode::Persistent.flags() }
}

fn exists(path: &str) -> Request {
    Request::Exists(PathWatch { path: path.to_owned(), watch: false })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_moves_from_node_to_node_always_sees_its_own_writes_and_sync_shows_those_of_others() {
    let cluster = Cluster::start(3, FAST).await;
    let mut writer = Raw::open(cluster.endpoint(1)).await;
    let mut readers = Vec::new();
    for node in 1..=3 {
        readers.push(Raw::open(cluster.endpoint(node)).await);
    }
    for round in 0..60_u64 {
        let path = format!("/moved-{round}");
        let (header, _) = writer.send(Request::Create2(create(&path))).await;
        assert_eq!(header.err, None);
        // read-your-writes, monotonic-reads: on whichever node, at once.
        writer = writer.move_to(cluster.endpoint(round % 3 + 1)).await;
        assert_eq!(
            writer.send(exists(&path)).await.0.err,
            None,
            "round {round}: own write is not seen after a move"
        );
        // Another session sees it after a sync on any node.
        for reader in &mut readers {
            assert_eq!(reader.send(Request::Sync("/".to_owned())).await.0.err, None);
            assert_eq!(reader.send(exists(&path)).await.0.err, None, "round {round}: sync did not show it");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_multi_has_a_clean_header_an_error_for_each_operation_and_no_effect_on_any_node() {
    let cluster = Cluster::start(3, FAST).await;
    let mut raw = Raw::open(cluster.endpoint(1)).await;
    let wrong = SetData { path: "/".to_owned(), data: None, version: Version(77) };
    let ops = vec![Op::Create2(create("/half")), Op::SetData(wrong), Op::Create2(create("/never"))];
    let (header, body) = raw.send(Request::Multi(ops)).await;
    assert_eq!(header.err, None, "the error stands in the body");
    let expected = [None, Some(ErrorCode::BadVersion), Some(ErrorCode::RuntimeInconsistency)];
    assert_eq!(body, Some(Response::Multi(expected.map(OpResult::Error).to_vec())));
    for node in 1..=3 {
        let mut raw = Raw::open(cluster.endpoint(node)).await;
        raw.send(Request::Sync("/".to_owned())).await;
        assert_eq!(raw.send(exists("/half")).await.0.err, Some(ErrorCode::NoNode));
    }
}
