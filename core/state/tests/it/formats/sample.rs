//! One of everything: a batch with every command and a state with every kind of znode.

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Mode, Owner};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{ClusterId, ErrorCode, FencingToken, NodeId, SessionId, Version};
use rowlock_state::command::{Attachment, Batch, Command, Ordinal, Origin, Proposal};
use rowlock_state::outcome::{Attached, Change, EventSink, SessionEnd};
use rowlock_state::{ClusterVersion, Machine, Proof};

pub struct Silent;

impl EventSink for Silent {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
}

/// The session that the batch opens.
pub const SESSION: SessionId = SessionId(3 << 56 | 1);

fn digest(user: &str) -> Id {
    Id { scheme: "digest".to_owned(), id: format!("{user}:hash") }
}

fn create(path: &str, data: Option<&'static [u8]>, flags: i32) -> Create {
    Create { path: path.to_owned(), data: data.map(Bytes::from_static), acl: Some(Acl::shared_open()), flags }
}

fn delete(path: &str) -> (String, Version) {
    (path.to_owned(), Version::ANY)
}

fn commands() -> Vec<Command> {
    let private = Some(
        [Acl { perms: perms::ALL, id: digest("u") }, Acl { perms: perms::READ, id: Id::anyone() }].into(),
    );
    let plain = |path, data, flags| Command::Client(Request::Create2(create(path, data, flags)));
    let (path, version) = delete("/gone");
    vec![
        Command::OpenSession { proof: Proof::of(b"0123456789abcdef"), timeout_ms: 30_000 },
        plain("/a", Some(b"data"), 0),
        plain("/a/null", None, 0),
        plain("/a/empty", Some(b""), 0),
        plain("/a/lock-", None, 3),
        plain("/box", None, 4),
        Command::Client(Request::CreateTtl(create("/ttl", None, 5), 60_000)),
        plain("/gone", None, 0),
        Command::Client(Request::Delete { path, version }),
        Command::Client(Request::SetData(SetData {
            path: "/a".to_owned(),
            data: Some(Bytes::from_static(b"new")),
            version: Version(0),
        })),
        Command::Client(Request::SetAcl(SetAcl {
            path: "/a/null".to_owned(),
            acl: private,
            version: Version(-1),
        })),
        Command::Client(Request::SetAcl(SetAcl { path: "/a".to_owned(), acl: None, version: Version(7) })),
        Command::Client(Request::Multi(vec![
            Op::Create(create("/a/é", Some(&[0, 255]), 0)),
            Op::Create2(create("/a/two", None, 1)),
            Op::CreateContainer(create("/box2", None, 4)),
            Op::CreateTtl(create("/ttl2-", None, 6), 5_000),
            Op::Delete { path: "/a/two".to_owned(), version: Version(0) },
            Op::SetData(SetData { path: "/a".to_owned(), data: None, version: Version(1) }),
            Op::Check { path: "/a".to_owned(), version: Version(2) },
        ])),
        Command::Reap { path: "/box".to_owned() },
        Command::Configure { config: "server.1=a:1:participant".to_owned() },
        Command::Noop,
        Command::Reattach {
            from: None,
            session: SESSION,
            proof: Proof::of(b"0123456789abcdef"),
            timeout_ms: 20_000,
        },
        Command::ExpireSession { session: SESSION, attachment: Attachment(1) },
        Command::Client(Request::CloseSession),
    ]
}

/// Every command and every operation.
pub fn batch() -> Batch {
    let proposal = |(number, command)| Proposal {
        origin: Origin { node: NodeId(3), incarnation: 0x1122_3344_5566_7788, request: number as u64 + 1 },
        session: SESSION,
        attachment: Attachment(1),
        identities: [digest("u")].into(),
        command,
    };
    Batch {
        time_ms: 1_700_000_000_123,
        enforce_quota: false,
        guard_locks: false,
        ordinal: Ordinal { term: 7, number: 300 },
        proposals: commands().into_iter().enumerate().map(proposal).collect(),
    }
}

/// The state after the batch (whose last two commands come from an attachment that is over), of a cluster
/// that has an id and holds its version, with a session from a known host.
pub fn machine() -> Machine {
    let mut machine = Machine::new();
    let batch = batch();
    for proposal in &batch.proposals {
        machine.apply(batch.time_ms, proposal, &mut Silent);
    }
    let mut proposal = batch.proposals[0].clone();
    proposal.identities = [Id { scheme: "ip".to_owned(), id: "192.0.2.7".to_owned() }].into();
    machine.apply(batch.time_ms, &proposal, &mut Silent).result.expect("a session is opened");
    for command in [Command::Found { cluster: ClusterId(0x1234 << 100) }, Command::HoldVersion { hold: true }]
    {
        machine.apply(batch.time_ms, &Proposal { command, ..proposal.clone() }, &mut Silent);
    }
    machine
}

fn acquire(lock: &str, prefix: &str, mode: Mode) -> Acquire {
    Acquire {
        lock: lock.into(),
        prefix: prefix.into(),
        data: Some(Bytes::from_static(b"label")),
        acl: Some(Acl::shared_open()),
        mode,
        limit: if matches!(mode, Mode::Permits(_)) { 3 } else { 0 },
        wait: true,
        owner: Owner::Named(u64::MAX),
        max_hold_ms: 60_000,
        lock_delay_ms: 1_000,
        min_hold_ms: 300,
        min_hold_lapses: true,
    }
}

fn lock_commands() -> Vec<Command> {
    let claim = |path: &str, token| Claim { path: path.into(), token: FencingToken(token) };
    let tagged = |id, acked, command| Command::Tagged { id, acked, command: Box::new(command) };
    let wait = Acquire { wait: false, owner: Owner::Session, ..acquire("/l/x", "try-", Mode::Shared) };
    vec![
        Command::OpenSession { proof: Proof::of(b"0123456789abcdef"), timeout_ms: 30_000 },
        tagged(
            1,
            0,
            Command::Client(Request::Acquire(
                vec![acquire("/l/x", "x-", Mode::Exclusive), acquire("/l/y", "y-", Mode::Shared)].into(),
            )),
        ),
        tagged(
            2,
            0,
            Command::Client(Request::Acquire(
                [Acquire { owner: Owner::Unnamed, ..acquire("/l/x", "x2-", Mode::Exclusive) }].into(),
            )),
        ),
        tagged(3, 1, Command::Client(Request::Acquire([wait].into()))),
        Command::Client(Request::Acquire([acquire("/l/s", "s-", Mode::Permits(2))].into())),
        Command::Client(Request::Verify(
            vec![claim("/l/x/x-0000000000", 2), claim("/l/y/y-0000000000", 3)].into(),
        )),
        Command::Client(Request::Convert {
            claim: claim("/l/y/y-0000000000", 2),
            mode: Mode::Exclusive,
            prefix: "w-".to_owned(),
        }),
        tagged(4, 1, Command::Client(Request::Release([claim("/l/x/x-0000000000", 9)].into()))),
        Command::Client(Request::Abandon(vec![Attempt { lock: "/l/z".to_owned(), prefix: "z-".to_owned() }])),
        Command::Client(Request::ForceRelease(claim("/l/z/z-0000000000", 9))),
        Command::LockDue { lock: "/l/x".to_owned() },
    ]
}

/// Every command about locks.
pub fn lock_batch() -> Batch {
    let mut batch = batch();
    let mut proposal = batch.proposals.swap_remove(0);
    batch.proposals.clear();
    for command in lock_commands() {
        proposal.origin.request += 1;
        proposal.command = command;
        batch.proposals.push(proposal.clone());
    }
    batch
}

fn ask(lock: &str, within_ms: u32) -> Ask {
    Ask { lock: lock.to_owned(), reason: "deploy".to_owned(), by: "x509:CN=a (ci)".to_owned(), within_ms }
}

pub fn other_batch() -> Batch {
    let mut batch = batch();
    let mut proposal = batch.proposals.swap_remove(0);
    batch.proposals.clear();
    let under = Acquire { owner: Owner::Under(300), ..acquire("/l/x", "x-", Mode::Exclusive) };
    for command in [
        Command::Client(Request::Acquire([under].into())),
        Command::Reattach {
            from: Some(Attachment(1)),
            session: SESSION,
            proof: Proof::of(b"0123456789abcdef"),
            timeout_ms: 20_000,
        },
        Command::CompareDigests,
        Command::DigestAt { index: 300, digest: 0x1122_3344_5566_7788 },
        Command::Refused(ErrorCode::BadArguments),
        Command::Found { cluster: ClusterId(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00) },
        Command::EndGrace,
        Command::RaiseVersion { to: ClusterVersion { number: 1, release: "0.2.0".to_owned() } },
        Command::HoldVersion { hold: true },
        Command::Client(Request::Ask(ask("/l/x", 30_000))),
        Command::Fenced {
            claim: Claim { path: "/l/x/x-0000000000".into(), token: FencingToken(7) },
            change: Op::Delete { path: "/a".to_owned(), version: Version(3) },
        },
        Command::RaiseTokens { above: FencingToken(5_000) },
        Command::Restart { cluster: ClusterId(7), grace_ms: 40_000 },
        Command::Client(Request::Release(
            [Claim { path: "/l/x/x-0000000000".into(), token: FencingToken(2) }].into(),
        )),
    ] {
        proposal.origin.request += 1;
        proposal.command = command;
        batch.proposals.push(proposal.clone());
    }
    batch
}

/// The state after it: holders, waiters, permits, kept outcomes, a question, and a lock-delay that another
/// session left behind.
pub fn machine_with_locks() -> Machine {
    let mut machine = Machine::new();
    let batch = lock_batch();
    let stamp = batch.stamp();
    for proposal in &batch.proposals {
        machine.apply_stamped(stamp, proposal, &mut Silent);
    }
    let mut proposal = batch.proposals[0].clone();
    let opened = machine.apply_stamped(stamp, &proposal, &mut Silent);
    let Attached { session, attachment, .. } = opened.attached.expect("a session opens");
    proposal.session = session;
    proposal.command =
        Command::Client(Request::Acquire([acquire("/l/delayed", "d-", Mode::Exclusive)].into()));
    machine.apply_stamped(stamp, &proposal, &mut Silent).result.expect("nobody holds it");
    proposal.command = Command::ExpireSession { session, attachment };
    machine.apply_stamped(stamp, &proposal, &mut Silent).result.expect("the session is open");
    proposal.session = SessionId::NONE;
    proposal.command = Command::Client(Request::Ask(ask("/l/x", 30_000)));
    let asked = machine.apply_stamped(stamp, &proposal, &mut Silent).result;
    assert_eq!(asked, Ok(Response::Number(1)), "one holds it");
    assert!(machine.takes(Ordinal { term: 7, number: 1 }), "it is the first entry with a number");
    machine
}

/// A state of many blocks.
pub fn large_machine() -> Machine {
    let mut machine = machine();
    let mut proposal = batch().proposals.swap_remove(1);
    proposal.attachment = Attachment(2);
    for number in 0..3_000 {
        let path = if number % 100 == 0 { "/a/s-" } else { "/box/t-" };
        let mut create = create(path, None, if number % 2 == 0 { 2 } else { 3 });
        create.data = Some(vec![number as u8; number].into());
        proposal.command = Command::Client(Request::Create2(create));
        machine.apply(0, &proposal, &mut Silent).result.expect("the parents exist");
    }
    machine
}
