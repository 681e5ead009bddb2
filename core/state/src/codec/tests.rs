//! Tries the bytes of log entries: round trips, damage, and the requests that have a form.

use std::sync::Arc;

use proptest::prelude::*;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Mode, Owner};
use rowlock_proto::request::{Create, Op, Request, SetAcl, SetData};
use rowlock_proto::{FencingToken, NodeId, OpCode, SessionId, Version};

use super::*;
use crate::command::{Attachment, Command, Ordinal, Origin, Proof};
use crate::version::ClusterVersion;

/// Of every length that a number may have.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
}

fn int() -> impl Strategy<Value = i64> {
    (number(), any::<bool>()).prop_map(|(n, negative)| if negative { !(n as i64) } else { n as i64 })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z/é]{0,12}", "[a-z]{240,270}"]
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..5).prop_map(Bytes::from))
}

fn id() -> impl Strategy<Value = Id> {
    (text(), text()).prop_map(|(scheme, id)| Id { scheme, id })
}

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let claim =
        (text(), int()).prop_map(|(path, token)| Claim { path: path.into(), token: FencingToken(token) });
    prop::collection::vec(claim, 0..3)
}

fn acquire() -> impl Strategy<Value = Acquire> {
    let u32s = || number().prop_map(|number| number as u32);
    let acl = (int(), id()).prop_map(|(perms, id)| Acl { perms: perms as i32, id });
    let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), u32s().prop_map(Mode::Permits)];
    let owner = prop_oneof![
        Just(Owner::Unnamed),
        Just(Owner::Session),
        number().prop_map(Owner::Named),
        number().prop_map(Owner::Under)
    ];
    let acls = prop_oneof![prop::collection::vec(acl, 0..3).prop_map(Arc::from), Just(Acl::shared_open()),];
    let acl = prop::option::of(acls);
    (text(), text(), data(), acl, mode, owner, any::<[bool; 2]>(), [u32s(), u32s(), u32s(), u32s()]).prop_map(
        |(
            lock,
            prefix,
            data,
            acl,
            mode,
            owner,
            [wait, min_hold_lapses],
            [limit, max_hold_ms, lock_delay_ms, min_hold_ms],
        )| Acquire {
            lock: lock.into(),
            prefix: prefix.into(),
            data,
            acl,
            mode,
            limit,
            wait,
            owner,
            max_hold_ms,
            lock_delay_ms,
            min_hold_ms,
            min_hold_lapses,
        },
    )
}

/// Every request that is logged, by its opcode.
fn request() -> impl Strategy<Value = Request> {
    let version = || int().prop_map(|version| Version(version as i32));
    let create = || {
        let acl = prop::option::of(Just(Acl::shared_open()));
        (text(), data(), acl, int()).prop_map(|(path, data, acl, flags)| {
            let flags = flags as i32;
            Create { path, data, acl, flags }
        })
    };
    let set =
        || (text(), data(), version()).prop_map(|(path, data, version)| SetData { path, data, version });
    let claim =
        || (text(), int()).prop_map(|(path, token)| Claim { path: path.into(), token: FencingToken(token) });
    let ops = prop::collection::vec(
        prop_oneof![
            create().prop_map(Op::Create),
            (create(), int()).prop_map(|(create, ttl_ms)| Op::CreateTtl(create, ttl_ms)),
            set().prop_map(Op::SetData),
            (text(), version()).prop_map(|(path, version)| Op::Check { path, version }),
        ],
        0..3,
    );
    prop_oneof![
        prop::collection::vec(acquire(), 0..3).prop_map(|all| Request::Acquire(all.into())),
        claims().prop_map(|claims| Request::Release(claims.into())),
        claims().prop_map(|claims| Request::Verify(claims.into())),
        create().prop_map(Request::Create),
        create().prop_map(Request::Create2),
        create().prop_map(Request::CreateContainer),
        (create(), int()).prop_map(|(create, ttl_ms)| Request::CreateTtl(create, ttl_ms)),
        (text(), version()).prop_map(|(path, version)| Request::Delete { path, version }),
        set().prop_map(Request::SetData),
        (text(), version()).prop_map(|(path, version)| {
            Request::SetAcl(SetAcl { path, acl: Some(Acl::shared_open()), version })
        }),
        ops.prop_map(Request::Multi),
        (text(), text()).prop_map(|(lock, prefix)| Request::Abandon(vec![Attempt { lock, prefix }])),
        (claim(), text())
            .prop_map(|(claim, prefix)| { Request::Convert { claim, mode: Mode::Shared, prefix } }),
        claim().prop_map(Request::ForceRelease),
        (text(), text(), number()).prop_map(|(lock, reason, within)| {
            Request::Ask(Ask { lock, reason, by: String::new(), within_ms: within as u32 })
        }),
        text().prop_map(Request::Sync),
        Just(Request::CloseSession),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let other = prop_oneof![
        Just(Command::Noop),
        text().prop_map(|lock| Command::LockDue { lock }),
        (number(), any::<[u8; 4]>()).prop_map(|(timeout, password)| Command::OpenSession {
            proof: Proof::of(&password),
            timeout_ms: timeout as u32,
        }),
        (prop::option::of(number()), int(), number()).prop_map(|(from, session, timeout)| {
            let (from, session) = (from.map(Attachment), SessionId(session));
            Command::Reattach { from, session, proof: Proof::of(b"p"), timeout_ms: timeout as u32 }
        }),
        Just(Command::CompareDigests),
        (number(), text()).prop_map(|(number, release)| Command::RaiseVersion {
            to: ClusterVersion { number: number as u16, release },
        }),
        any::<bool>().prop_map(|hold| Command::HoldVersion { hold }),
        int().prop_map(|above| Command::RaiseTokens { above: FencingToken(above) }),
        (number(), number()).prop_map(|(index, digest)| Command::DigestAt { index, digest }),
        Just(Command::Refused(rowlock_proto::ErrorCode::BadArguments)),
    ];
    let plain = prop_oneof![2 => request().prop_map(Command::Client), 1 => other];
    (plain, prop::option::of((number(), number()))).prop_map(|(command, tag)| match tag {
        Some((id, acked)) if command.is_write() => command.tagged(id, acked),
        _ => command,
    })
}

/// Whose parts are often those of the one before.
fn proposals() -> impl Strategy<Value = Vec<Proposal>> {
    let few = |of: u64| prop_oneof![4 => (0..2u64).prop_map(move |n| n * of), 1 => number()];
    let identities = prop::collection::vec(id(), 0..3);
    let identities = prop_oneof![2 => Just(vec![]), 2 => Just(vec![Id::anyone()]), 1 => identities];
    let proposal = ([few(1), few(u64::MAX), few(2), few(1)], int(), identities, command());
    prop::collection::vec(proposal, 0..6).prop_map(|all| {
        let numbered = all.into_iter().enumerate();
        let made = numbered.map(|(at, ([node, incarnation, request, attachment], session, ids, command))| {
            let request = request.wrapping_add(at as u64);
            Proposal {
                origin: Origin { node: NodeId(node), incarnation, request },
                session: SessionId(session),
                attachment: Attachment(attachment),
                identities: ids.into(),
                command,
            }
        });
        made.collect()
    })
}

fn batch() -> impl Strategy<Value = Batch> {
    let ordinal = (number(), number()).prop_map(|(term, number)| Ordinal { term, number });
    (int(), any::<bool>(), ordinal, proposals()).prop_map(|(time_ms, enforce_quota, ordinal, proposals)| {
        Batch { time_ms, enforce_quota, guard_locks: !enforce_quota, ordinal, proposals }
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read(batch in batch()) {
        let bytes = batch.encode();
        prop_assert_eq!(Batch::decode(&bytes).unwrap(), batch.clone());
        let mut alone = Vec::new();
        Proposal::encode_all(&batch.proposals, &mut alone);
        prop_assert_eq!(Proposal::decode_all(&alone.into()).unwrap(), batch.proposals);
    }

    #[test]
    fn no_cut_of_a_batch_is_a_batch(batch in batch(), cut in any::<prop::sample::Index>()) {
        let bytes = batch.encode();
        prop_assert!(Batch::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    /// Whatever damage makes of it is a batch like any other.
    #[test]
    fn what_is_made_of_damaged_bytes_can_be_written(
        batch in batch(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = batch.encode().to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(read) = Batch::decode(&bytes) {
            prop_assert_eq!(Batch::decode(&read.encode()).unwrap(), read);
        }
    }
}

#[test]
fn what_repeats_is_left_out() {
    let acquire = Acquire::exclusive("/locks/orders", "_c_0b6cfd19-3e5f-4c81-9c4e-5f0d3b6cfd19-lock-");
    let text = acquire.lock.len() + acquire.prefix.len();
    let proposal = |n: u64| Proposal {
        origin: Origin { node: NodeId(1), incarnation: u64::MAX, request: 1_000_000 + n },
        session: SessionId(1 << 56 | n as i64),
        attachment: Attachment(1),
        identities: [Id { scheme: "ip".to_owned(), id: "192.168.100.200".to_owned() }].into(),
        command: Command::Tagged {
            id: 70_000 + n,
            acked: 69_999 + n,
            command: Box::new(Command::Client(Request::Acquire([acquire.clone()].into()))),
        },
    };
    let length = |count| {
        let mut bytes = Vec::new();
        Proposal::encode_all(&(0..count).map(proposal).collect::<Vec<_>>(), &mut bytes);
        bytes.len()
    };
    // What is new, session, id, kind, how many, what else, and the lengths of two texts.
    assert_eq!(length(3) - length(2), text + 1 + 1 + 5 + 1 + 1 + 1 + 2);
}

#[test]
fn lists_that_claim_more_than_there_is_are_damage() {
    let bytes = [&[1, 0, 0, 0, 0, 253][..], &u64::MAX.to_le_bytes()].concat();
    assert!(matches!(Batch::decode(&bytes), Err(BatchError::Damaged(_))));
    let bytes = [&[1, 0, 0, 0, 0, 252][..], &1_000_000u32.to_le_bytes(), &[0; 2_000_000]].concat();
    assert!(matches!(Batch::decode(&bytes), Err(BatchError::Damaged(_))), "two thirds of them are there");
}

#[test]
fn the_log_has_a_form_for_each_logged_opcode_and_for_no_other() {
    for opcode in OpCode::ALL {
        // A body of zeros is that of empty texts and lists. A multi has the header of its end.
        let body = if *opcode == OpCode::Multi {
            [&(-1i32).to_be_bytes()[..], &[1], &(-1i32).to_be_bytes()].concat()
        } else {
            vec![0; 64]
        };
        let frame = [&[0; 4][..], &opcode.as_i32().to_be_bytes(), &body].concat();
        let Ok(frame) = rowlock_proto::decode::request(frame.into()) else {
            assert!(!opcode.is_logged(), "{opcode}");
            continue;
        };
        let Some(command) = Command::of_client(frame.request) else {
            assert!(!opcode.is_logged(), "{opcode}");
            continue;
        };
        assert!(opcode.is_logged(), "{opcode}");
        let proposal = Proposal {
            origin: Origin::default(),
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Arc::default(),
            command,
        };
        let mut bytes = Vec::new();
        Proposal::encode_all(std::slice::from_ref(&proposal), &mut bytes);
        assert_eq!(Proposal::decode_all(&bytes.into()).unwrap(), [proposal], "{opcode}");
    }
}

#[test]
fn a_tag_is_on_a_write_alone() {
    // The entry's number, one proposal with a tag, of which all before are acknowledged.
    let head = [1, 0, 0, 0, 0, 1, head::TAG | head::ACKED, 0, 1, 0];
    let read = |command: &[u8]| Batch::decode(&[&head[..], command].concat());
    assert!(read(&[tag::ABANDON, 0]).is_ok());
    for command in [&[0][..], &[tag::SYNC, 0], &[tag::VERIFY, 0], &[tag::CLOSE_SESSION]] {
        assert!(read(command).is_err(), "{command:?}");
        assert!(Batch::decode(&[&[1, 0, 0, 0, 0, 1, 0, 0][..], command].concat()).is_ok(), "{command:?}");
    }
}

#[test]
fn a_kind_that_this_release_does_not_know_is_damage() {
    let kinds = [tag::ASK + 1, u8::MAX, tag::FIRST - 1];
    for kind in kinds {
        let bytes = [&[1, 0, 0, 0, 0, 1, 0, 0][..], &[kind; 40]].concat();
        assert!(Batch::decode(&bytes).is_err(), "{kind}");
    }
}

#[test]
fn a_forged_length_gets_no_memory() {
    let set = [&[2, b'/', b'a', 1, 252][..], &(BATCH_MAX_BYTES as u32 / 2).to_le_bytes()].concat();
    assert!(matches!(from_bincode::<SetData>(&set), Err(DecodeError::LimitExceeded)));
}
