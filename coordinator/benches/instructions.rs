//! What the steps around apply cost, in instructions and allocations: the log's records, what nodes send each
//! other, what the lock history is told, and the watches that a change fires: `cargo bench -p
//! rowlock-coordinator --bench instructions`.

#[path = "../../lab/instructions/harness.rs"]
mod harness;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use harness::{Case, measured};
use rowlock_consensus::peer::message::Request;
use rowlock_coordinator::node::delivery::outbox::{Inbox, channel};
use rowlock_coordinator::node::delivery::watch::{ConnectionId, Kinds, WatchTable};
use rowlock_history::{History, Retention};
use rowlock_metrics::Metrics;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Mode};
use rowlock_proto::{FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::{Attachment, Batch, Command, Origin, Proposal};
use rowlock_state::outcome::{
    Change, ChangeKind, EndReason, EventContext, LockEvent, LockEventKind, PositionEnd,
};
use rowlock_state::rules::Rules;
use rowlock_wal::log::record::Record;
use rowlock_wal::log::record::{self, Chain, FrameContext, SegmentKey};
use rowlock_wal::{Entry, LeaderId, LogId, Payload};

/// How often each is done.
const TIMES: usize = 100;
const KEY: SegmentKey = SegmentKey { segment: 7, salt: 0x1357_9bdf };
const PLACE: FrameContext = FrameContext { key: KEY, previous: Chain(0xaabb_ccdd), flushed: 4096 };
/// Largest frame between nodes that is decoded here.
const MAX_BYTES: usize = 1 << 20;

const CASES: [Case; 11] = [
    case("log: encode an entry of 1 command", || log_encode(1)),
    case("log: encode an entry of 64 commands", || log_encode(64)),
    case("log: encode an entry of 512 commands", || log_encode(512)),
    case("log: decode an entry of 64 commands", || log_decode(64)),
    case("peer: encode forwarded commands, each of 64", || peer_encode(64)),
    case("peer: decode forwarded commands, each of 64", || peer_decode(64)),
    case("history: an acquire and a release, told by apply", history),
    case("watches: a change that 1000 data watches hear", || fire(1_000)),
    case("watches: a change that 1 data watch hears", || fire(1)),
    case("watches: a change that nobody hears, of 1000 watched", fire_for_nobody),
    case("watches: set a watch", set_watch),
];

const fn case(name: &'static str, run: fn() -> u64) -> Case {
    Case { name, run, on_request: false }
}

fn main() -> ExitCode {
    let table = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/instructions/coordinator.txt"));
    harness::run("coordinator", &CASES, Path::new(env!("CARGO_TARGET_TMPDIR")), table)
}

fn proposals(commands: usize) -> Vec<Proposal> {
    (0..commands as u64).map(proposal).collect()
}

fn proposal(n: u64) -> Proposal {
    let acquire = Acquire {
        data: Some(Bytes::from_static(b"host-17.example.org:41234")),
        ..Acquire::exclusive(
            format!("/locks/bench-own-{n}"),
            format!("_c_0b6cfd19-3e5f-4c81-9c4e-{:012x}-lock-", n * 0x1357),
        )
    };
    let acquire = Box::new(Command::Client(rowlock_proto::Request::Acquire([acquire].into())));
    Proposal {
        origin: Origin { node: NodeId(1), incarnation: 0x1234_5678, request: n },
        session: SessionId(0x0100_0000_0000_0000 + n as i64),
        attachment: Attachment(1),
        identities: [Id { scheme: "ip".to_owned(), id: "127.0.0.1".to_owned() }].into(),
        command: Command::Tagged { id: n + 1, acked: n, command: acquire },
    }
}

fn record(commands: usize) -> Record {
    let batch = Batch { time_ms: 1_700_000_000_000, proposals: proposals(commands), ..Batch::default() };
    let log_id = LogId { leader_id: LeaderId { term: 3, node_id: 1 }, index: 123_456 };
    Record::Entry(Entry { log_id, payload: Payload::Normal(batch.encode()) })
}

/// As the log's writer does: into buffers that have room.
fn log_encode(commands: usize) -> u64 {
    let record = record(commands);
    let (mut body, mut staged) = (Vec::with_capacity(MAX_BYTES), Vec::with_capacity(MAX_BYTES));
    for _ in 0..TIMES {
        body.clear();
        staged.clear();
        measured(|| {
            let kind = record.encode_into(&mut body);
            record::write(&mut staged, PLACE, kind, &body)
        });
    }
    TIMES as u64
}

fn log_decode(commands: usize) -> u64 {
    let (mut body, mut staged) = (Vec::new(), Vec::new());
    let kind = record(commands).encode_into(&mut body);
    record::write(&mut staged, PLACE, kind, &body);
    for _ in 0..TIMES {
        let decoded =
            measured(|| record::read(&staged, KEY).map(|frame| Record::decode(frame.kind, frame.body)));
        assert!(decoded.is_some_and(|record| record.is_ok()));
    }
    TIMES as u64
}

fn peer_encode(commands: usize) -> u64 {
    let request = Request::Forward { term: 1, batch: proposals(commands) };
    for _ in 0..TIMES {
        measured(|| request.encode());
    }
    (TIMES * commands) as u64
}

fn peer_decode(commands: usize) -> u64 {
    let bytes = Request::Forward { term: 1, batch: proposals(commands) }.encode().into();
    for _ in 0..TIMES {
        assert!(measured(|| Request::decode(&bytes, MAX_BYTES)).is_ok());
    }
    (TIMES * commands) as u64
}

/// What apply's thread does for it: cycles of 64 locks in turn, each entry of the log with 16 of them.
fn history() -> u64 {
    const LOCKS: u64 = 64;
    const PER_ENTRY: u64 = 16;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let retention = Retention { max_age_ms: 7 * 86_400_000, max_bytes: 256 << 20 };
    let (_history, sink) = History::start(folder.path(), retention, Arc::new(Metrics::default()));
    let cycles = TIMES as u64 * PER_ENTRY;
    for n in 0..cycles {
        let lock = format!("/locks/bench-own-{}", n % LOCKS);
        let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let id = format!("{:08x}-{:04x}-4c81-9c4e-{:012x}", id as u32, id >> 48, id >> 16);
        let path = format!("{lock}/_c_{id}-lock-{:010}", n / LOCKS);
        let token = 1 + 2 * n as i64;
        let event = |kind| LockEvent {
            kind,
            lock: lock.as_str(),
            path: path.as_str(),
            token: FencingToken(token),
            session: SessionId(0x0100_0000_0000_0000 + (n % LOCKS) as i64),
            label: "host-17.example.org:41234",
            address: Some("127.0.0.1"),
            mode: Mode::Exclusive,
            acquired: true,
        };
        let (time_ms, acl) = (1_700_000_000_000 + (n / PER_ENTRY) as i64, Acl::open_entries());
        let context = |zxid| EventContext { zxid: Zxid(zxid), time_ms, acl, lock_acl: acl };
        let end = PositionEnd { reason: EndReason::Released, waited_ms: 0, held_ms: Some(3), by: None };
        measured(|| {
            sink.lock(&event(LockEventKind::Requested { ahead: 0 }), &context(token));
            sink.lock(&event(LockEventKind::Granted { waited_ms: 0 }), &context(token));
            sink.lock(&event(LockEventKind::Released(end)), &context(token + 1));
        });
        if n % PER_ENTRY == PER_ENTRY - 1 {
            measured(|| sink.applied());
        }
    }
    cycles
}

fn table(connections: u64) -> (WatchTable, Vec<Inbox>) {
    let mut table = WatchTable::new();
    let identities: Arc<[Id]> = [Id { scheme: "ip".to_owned(), id: "127.0.0.1".to_owned() }].into();
    let join = |n| {
        let (outbox, inbox) = channel();
        table.join(ConnectionId(n), &outbox, &identities);
        inbox
    };
    let inboxes = (1..=connections).map(join).collect();
    (table, inboxes)
}

fn change<'a>(path: &'a str, acl: &'a [Acl]) -> Change<'a> {
    static RULES: LazyLock<Rules> = LazyLock::new(Rules::default);
    let (kind, rules) = (ChangeKind::DataChanged, &*RULES);
    Change { zxid: Zxid(123_456), path, kind, acl, parent_acl: acl, rules }
}

fn fire(connections: u64) -> u64 {
    let (mut table, mut inboxes) = table(connections);
    let acl = Acl::open();
    for _ in 0..TIMES {
        for n in 1..=connections {
            table.add(ConnectionId(n), "/config/feature", Kinds::DATA).expect("is allowed");
        }
        measured(|| table.fire(&change("/config/feature", &acl)));
        for inbox in &mut inboxes {
            inbox.take(&mut Default::default()).expect("has room");
        }
    }
    TIMES as u64
}

/// Every connection watches a znode of its own.
fn watched(connections: u64) -> (WatchTable, Vec<Inbox>) {
    let (mut table, inboxes) = table(connections);
    for n in 1..=connections {
        let path = format!("/locks/bench-own-{n}/_c_0b6cfd19-3e5f-4c81-9c4e-6f1f0a35e0d2-lock-{n:010}");
        table.add(ConnectionId(n), &path, Kinds::DATA).expect("is allowed");
    }
    (table, inboxes)
}

fn fire_for_nobody() -> u64 {
    let (mut table, _inboxes) = watched(1_000);
    let acl = Acl::open();
    for n in 0..TIMES {
        let path = format!("/locks/bench-own-{n}/_c_7a6cfd19-3e5f-4c81-9c4e-6f1f0a35e0d2-lock-{n:010}");
        let change = Change { kind: ChangeKind::Deleted, ..change(&path, &acl) };
        measured(|| table.fire(&change));
    }
    TIMES as u64
}

fn set_watch() -> u64 {
    let (mut table, _inboxes) = watched(1_000);
    for n in 0..TIMES {
        let path = format!("/locks/bench-own-{n}/_c_7a6cfd19-3e5f-4c81-9c4e-6f1f0a35e0d2-lock-{n:010}");
        measured(|| table.add(ConnectionId(17), &path, Kinds::DATA)).expect("is allowed");
    }
    TIMES as u64
}
