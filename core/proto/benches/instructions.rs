//! Costs of decoding and encoding frames, in instructions and allocations: `cargo bench -p rowlock-proto
//! --bench instructions`.

#[path = "../../../lab/instructions/harness.rs"]
mod harness;

use std::path::Path;
use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use harness::{Case, measured};
use rowlock_proto::lock::{Acquire, Claim, Party, QueuePosition};
use rowlock_proto::request::{Create, PathWatch};
use rowlock_proto::{
    Acl, ConnectRequest, ConnectResponse, CreateMode, EventType, FencingToken, OpCode, ReplyHeader, Request,
    RequestFrame, Response, SessionId, Stat, WatchedEvent, Xid, Zxid, decode, encode, frame,
};

/// Repetitions of each operation.
const TIMES: u64 = 100;
/// Number of names in a long list of children.
const CHILDREN: usize = 1_000;
const DATA: Bytes = Bytes::from_static(b"host-17.example.org:41234");
const LOCK: &str = "/locks/bench-own-17";
const PREFIX: &str = "_c_0b6cfd19-3e5f-4c81-9c4e-6f1f0a35e0d2-lock-";

const CASES: [Case; 17] = [
    case("server: cut off a frame", split),
    case("server: decode Connect", decode_connect),
    case("server: encode the reply to Connect", encode_connected),
    case("server: decode ping", || decode_request(Request::Ping)),
    case("server: encode the reply to ping", || encode_reply(&Response::Empty)),
    case("server: decode create", || decode_request(create())),
    case("server: encode the reply to create", || encode_reply(&Response::Path(queue_path()))),
    case("server: decode acquire", || decode_request(acquire())),
    case("server: encode the reply to acquire, held", || encode_reply(&held())),
    case("server: encode the reply to acquire, waiting", || encode_reply(&waiting())),
    case("server: decode release", || decode_request(release())),
    case("server: encode the reply to release", || encode_reply(&Response::Held(vec![true].into()))),
    case("server: decode getData", || decode_request(get_data())),
    case("server: encode the reply to getChildren, 1000 names", || encode_reply(&children())),
    case("server: encode an event", encode_event),
    case("client: encode acquire", encode_acquire),
    case("client: decode the reply to acquire, held", decode_held),
];

const fn case(name: &'static str, run: fn() -> u64) -> Case {
    Case { name, run, on_request: false }
}

fn main() -> ExitCode {
    let table = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/instructions/proto.txt"));
    harness::run("proto", &CASES, Path::new(env!("CARGO_TARGET_TMPDIR")), table)
}

/// Returns the frame appended by `encode`, without its length.
fn frame_of(encode: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    encode(&mut out);
    frame::split(&mut out, frame::DEFAULT_MAX_BYTES).expect("is a frame").expect("is whole")
}

fn split() -> u64 {
    for _ in 0..TIMES {
        let mut buf = BytesMut::from(&[0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11, 0, 0, 0, 8][..]);
        let frame = measured(|| frame::split(&mut buf, frame::DEFAULT_MAX_BYTES));
        assert!(frame.is_ok());
    }
    TIMES
}

fn decode_connect() -> u64 {
    let connect = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: Zxid(0),
        timeout_ms: 10_000,
        session_id: SessionId::NONE,
        password: Bytes::from_static(&[0; 16]),
        read_only: Some(false),
    };
    let frame = frame_of(|out| encode::connect_request(&connect, out));
    for _ in 0..TIMES {
        let frame = frame.clone();
        assert!(measured(|| decode::connect_request(frame)).is_ok());
    }
    TIMES
}

fn encode_connected() -> u64 {
    let connected = ConnectResponse {
        protocol_version: 0,
        timeout_ms: 10_000,
        session_id: SessionId(0x0100_0000_0000_0017),
        password: Bytes::from_static(&[7; 16]),
        read_only: Some(false),
    };
    encode(|out| encode::connect_response(&connected, out))
}

/// Encodes like a connection: appends to a buffer with room.
fn encode(mut append: impl FnMut(&mut BytesMut)) -> u64 {
    let mut out = BytesMut::with_capacity(1 << 20);
    for _ in 0..TIMES {
        measured(|| append(&mut out));
        out.clear();
    }
    TIMES
}

fn encode_reply(body: &Response) -> u64 {
    let header = ReplyHeader { xid: Xid(17), zxid: Zxid(123_456), err: None };
    encode(|out| encode::reply(header, Some(body), out))
}

fn encode_event() -> u64 {
    let event = WatchedEvent {
        zxid: Zxid(123_456),
        event_type: EventType::NodeDeleted,
        state: 3,
        path: queue_path(),
    };
    encode(|out| encode::event(&event, out))
}

fn encode_acquire() -> u64 {
    let request = RequestFrame { xid: Xid(17), request: acquire() };
    encode(|out| encode::request(&request, out))
}

fn decode_request(request: Request) -> u64 {
    let frame = frame_of(|out| encode::request(&RequestFrame { xid: Xid(17), request }, out));
    for _ in 0..TIMES {
        let frame = frame.clone();
        assert!(measured(|| decode::request(frame)).is_ok());
    }
    TIMES
}

fn decode_held() -> u64 {
    let header = ReplyHeader { xid: Xid(17), zxid: Zxid(123_456), err: None };
    let frame = frame_of(|out| encode::reply(header, Some(&held()), out));
    for _ in 0..TIMES {
        let mut frame = frame.clone();
        let decoded = measured(|| {
            decode::reply_header(&mut frame).and_then(|_| decode::response(&mut frame, OpCode::Acquire))
        });
        assert!(decoded.is_ok());
    }
    TIMES
}

fn queue_path() -> String {
    format!("{LOCK}/{PREFIX}0000000017")
}

fn tagged(request: Request) -> Request {
    Request::Tagged { id: 18, acked: 17, request: Box::new(request) }
}

fn create() -> Request {
    let flags = CreateMode::EphemeralSequential.flags();
    let path = format!("{LOCK}/{PREFIX}");
    Request::Create(Create { path, data: Some(DATA), acl: Some(Acl::shared_open()), flags })
}

fn acquire() -> Request {
    tagged(Request::Acquire([Acquire { data: Some(DATA), ..Acquire::exclusive(LOCK, PREFIX) }].into()))
}

fn release() -> Request {
    tagged(Request::Release([claim()].into()))
}

fn get_data() -> Request {
    Request::GetData(PathWatch { path: LOCK.to_owned(), watch: false })
}

fn claim() -> Claim {
    Claim { path: queue_path().into(), token: FencingToken(123_456) }
}

fn held() -> Response {
    Response::QueuePositions(vec![QueuePosition::Held(claim())].into())
}

fn waiting() -> Response {
    let holder = Party {
        path: queue_path().into(),
        session: SessionId(0x0100_0000_0000_0017),
        token: FencingToken(123_000),
        label: DATA,
        since_ms: 1_700_000_000_000,
    };
    Response::QueuePositions(
        vec![QueuePosition::Waiting { claim: claim(), ahead: 3, holder: Some(holder) }].into(),
    )
}

fn children() -> Response {
    let names = (0..CHILDREN).map(|n| format!("{PREFIX}{n:010}")).collect();
    Response::Children2(names, Stat::default())
}
