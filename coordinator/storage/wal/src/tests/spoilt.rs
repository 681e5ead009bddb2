//! Spoilt states in snapshots, from a damaged disk or a hostile node.

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::SessionId;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::Acquire;
use rowlock_proto::request::Create;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::{Machine, Proof};
use rowlock_world::spoilt::Spoiler;

/// Magic, versions and fingerprint before the first block.
const HEADER_BYTES: usize = 16;

/// Makes a block of `records` under the header of `good`, with a valid checksum.
fn sealed(good: &[u8], records: &[u8]) -> Vec<u8> {
    let len = u32::try_from(records.len()).unwrap().to_le_bytes();
    [&good[..HEADER_BYTES], &len, &crc32fast::hash(records).to_le_bytes(), records].concat()
}

#[test]
fn a_spoilt_state_is_refused_or_decodes_as_written() {
    let (machine, mut good) = (busy_machine(), Vec::new());
    machine.freeze().encode(&mut good).expect("memory takes everything");
    let records = good[HEADER_BYTES + 8..].to_vec();
    assert_eq!(sealed(&good, &records), good, "it is one block");
    let (mut spoiler, mut read, mut refused) = (Spoiler::new(5), 0, 0);
    for round in 0..6_000_u32 {
        let bytes =
            if round % 3 == 0 { spoiler.spoil(&good) } else { sealed(&good, &spoiler.spoil(&records)) };
        match Machine::decode(&mut bytes.as_slice()) {
            Ok(state) => {
                state.check().expect("it is whole");
                read += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!(refused > 5_000, "{read} read, {refused} refused");
    assert_eq!(Machine::decode(&mut good.as_slice()).expect("is not spoilt").digest(), machine.digest());
}

/// Makes a state with sessions, znodes of all kinds, a queue and kept outcomes.
fn busy_machine() -> Machine {
    let mut machine = Machine::new();
    let mut proposal = Proposal {
        origin: Origin::default(),
        session: SessionId::NONE,
        attachment: Attachment(1),
        identities: [Id { scheme: "digest".to_owned(), id: "u:hash".to_owned() }].into(),
        command: Command::OpenSession { proof: Proof::of(b"0123456789abcdef"), timeout_ms: 4_000 },
    };
    proposal.session = machine.apply(1_000, &proposal, &mut ()).attached.expect("a session opens").session;
    let acquire = |number: u32| Acquire {
        data: Some(Bytes::from_static(b"label")),
        max_hold_ms: 60_000,
        lock_delay_ms: 1_000,
        ..Acquire::exclusive("/l/x", format!("p{number}-"))
    };
    let create = |(path, flags): (&str, i32)| {
        let (path, data) = (path.to_owned(), Some(Bytes::from_static(b"data")));
        Command::Client(Request::Create2(Create { path, data, acl: Some(Acl::shared_open()), flags }))
    };
    let locks = (1..=3).map(|id| Command::Tagged {
        id: u64::from(id),
        acked: 0,
        command: Box::new(Command::Client(Request::Acquire([acquire(id)].into()))),
    });
    for command in [("/a", 0), ("/a/e", 1), ("/box", 4), ("/a/s-", 2)].map(create).into_iter().chain(locks) {
        proposal.command = command;
        machine.apply(2_000, &proposal, &mut ()).result.expect("nothing forbids it");
    }
    machine
}
