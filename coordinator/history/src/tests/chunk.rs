//! What is put into builders comes out of chunks.

use proptest::prelude::*;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_state::outcome::{LockEvent, LockEventKind, Why};

use super::*;
use crate::chunk_builder::{ChunkBuilder, Put};
use crate::query::Filter;
use crate::record::LOCK_MAX_BYTES;

const EVERYTHING: Range = Range { from: Key::MIN, before: Key::MAX };

fn event<'a>(lock: &'a str, path: &'a str, kind: LockEventKind) -> LockEvent<'a> {
    LockEvent {
        zxid: Zxid(1),
        time_ms: 7,
        lock,
        path,
        token: FencingToken(1),
        session: SessionId(3),
        address: "a",
        label: b"",
        acl: Acl::open_entries(),
        lock_acl: Acl::open_entries(),
        mode: Mode::Exclusive,
        is_acquired: true,
        kind,
    }
}

fn filter(lock: Option<&str>, session: Option<SessionId>) -> Filter {
    Filter { lock: lock.map(str::to_owned), session, since_ms: 0, before: Key::MAX, limit: 1 }
}

fn read(bytes: &[u8], filter: &Filter, range: Range) -> Result<Vec<(Key, Entry<'static>)>, HistoryError> {
    let mut entries = Vec::new();
    for chunk in chunks(bytes) {
        let found = chunk?.read(&Wanted::by(filter), range)?;
        for moment in &found.moments {
            entries.push((moment.key, found.entry(moment)?));
        }
    }
    Ok(entries)
}

fn key(time_ms: i64, zxid: i64, ordinal: u32) -> Key {
    Key { time_ms, zxid: Zxid(zxid), ordinal }
}

const REQUESTED: LockEventKind = LockEventKind::Requested { ahead: 300 };
const GRANTED: LockEventKind = LockEventKind::Granted { waited_ms: 0 };
const RELEASED: LockEventKind =
    LockEventKind::Gone { held_ms: Some(2), waited_ms: 0, why: Why::SessionExpired };

#[test]
fn bytes_of_a_chunk_are_those_of_version_1() {
    let (mut builder, mut bytes) = (ChunkBuilder::default(), Vec::new());
    for (key, kind) in [
        (key(7, 9, 0), REQUESTED),
        (key(7, 9, 1), GRANTED),
        (key(8, 10, 0), LockEventKind::Converted),
        (key(8, 10, 1), RELEASED),
    ] {
        let mode = if kind == LockEventKind::Converted { Mode::Permits(2) } else { Mode::Exclusive };
        let event = LockEvent { token: FencingToken(9), mode, ..event("/l", "/l/n", kind) };
        assert_eq!(builder.put(key, &event), Put::Done);
    }
    builder.finish(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = concat!(
        "6f0000002d00000004000000", // lengths of all and of definitions; events
        "8000000000000007800000000000000900000000", // first key
        "8000000000000008800000000000000a00000001", // last key
        "000c00060201002f6c61",     // a party: exclusive, acquired, for everybody; lock and address
        "011200016e",               // its place: token and name
        "000e02060201002f6c61",     // another party: two permits
        "020000016e",               // its place
        "000c00060201002f6c61",     // the first one again: what was guessed last is the other one
        "030000016e",               // its place
    );
    let events = concat!(
        "0400ac02", // requested, as the first one of the same command; place, how many were ahead
        "0d00",     // granted, the same command and place; it waited so long
        "02020201", // converted: clock and zxid, place
        "57020004", // gone: expired, held, the same command; place, waited, held
    );
    assert_eq!(hex, format!("{expected}{events}"));
}

#[test]
fn what_cannot_be_said_in_a_chunk_needs_the_next_one_or_is_refused() {
    let mut builder = ChunkBuilder::default();
    let short = event("/l", "/l/n", GRANTED);
    assert_eq!(builder.put(key(1, 1, 5), &short), Put::Done, "a chunk may begin anywhere");
    assert_eq!(builder.put(key(1, 1, 7), &short), Put::Full);
    assert_eq!(builder.put(key(1, 2, 1), &short), Put::Full);
    assert_eq!(builder.put(key(1, 1, 6), &short), Put::Done);
    let long = format!("/{}", "a".repeat(LOCK_MAX_BYTES));
    assert_eq!(builder.put(key(1, 2, 0), &event(&long, "/x/n", GRANTED)), Put::TooLong);
    assert_eq!(builder.put(key(1, 2, 0), &event("/x", &format!("{long}b"), GRANTED)), Put::TooLong);
    let label = vec![0; CHUNK_MAX_BYTES];
    assert_eq!(builder.put(key(1, 2, 0), &LockEvent { label: &label, ..short }), Put::TooLong);
    let mut zxid = 2;
    while builder.put(key(1, zxid, 0), &LockEvent { label: &label[..20_000], ..event("/l", "/l/n", GRANTED) })
        == Put::Done
    {
        zxid += 1;
        let label = &label[..1_000 + zxid as usize];
        assert_eq!(builder.put(key(1, zxid, 0), &LockEvent { label, ..short }), Put::Done);
        zxid += 1;
    }
    let mut bytes = Vec::new();
    builder.finish(&mut bytes);
    assert!(bytes.len() > CHUNK_MAX_BYTES / 2 && bytes.len() <= CHUNK_MAX_BYTES);
    let found = read(&bytes, &filter(None, None), EVERYTHING).unwrap();
    assert_eq!((found.len(), found[0].0, found[1].0), (zxid as usize, key(1, 1, 5), key(1, 1, 6)));
    let Entry::Lock(record) = &found[0].1 else { panic!("it is no gap") };
    assert_eq!(record.path(), "/l/n");
}

/// An event as a test makes it up.
#[derive(Clone, Debug)]
struct Made {
    who: usize,
    readers: usize,
    token: i64,
    mode: Mode,
    kind: LockEventKind,
    /// It begins another command, which is so much later.
    command: Option<i64>,
    /// It is the last one of a log entry.
    is_end: bool,
    /// Behind it the thread takes what is whole.
    is_taken: bool,
}

fn made() -> impl Strategy<Value = Made> {
    let why = prop_oneof![
        Just(Why::Released),
        Just(Why::SessionClosed),
        Just(Why::SessionExpired),
        Just(Why::Deleted),
        Just(Why::Forced),
        Just(Why::SessionEnded),
        Just(Why::Revoked)
    ];
    let kind =
        prop_oneof![
            any::<u32>().prop_map(|ahead| LockEventKind::Requested { ahead }),
            any::<i64>().prop_map(|waited_ms| LockEventKind::Granted { waited_ms }),
            Just(LockEventKind::Converted),
            Just(LockEventKind::Asked),
            (any::<Option<i64>>(), any::<i64>(), why)
                .prop_map(|(held_ms, waited_ms, why)| LockEventKind::Gone { held_ms, waited_ms, why }),
        ];
    let mode = prop_oneof![
        8 => Just(Mode::Exclusive),
        1 => Just(Mode::Shared),
        1 => any::<u32>().prop_map(Mode::Permits)
    ];
    let command = proptest::option::of(0..3_i64);
    ((0..6_usize, 0..4_usize), 0..4_i64, mode, kind, command, any::<bool>(), proptest::bool::weighted(0.2))
        .prop_map(|((who, readers), token, mode, kind, command, is_end, is_taken)| Made {
            who,
            readers,
            token: token * (i64::MAX / 3),
            mode,
            kind,
            command,
            is_end,
            is_taken,
        })
}

const LOCKS: [&str; 3] = ["/", "/locks/a", "/locks/orders%2F17"];

/// Of the lock and of the place, and who may read the place then.
fn permissions(which: usize) -> ((Vec<Acl>, Vec<Acl>), Readers) {
    let user = |name: &str| Id { scheme: "digest".to_owned(), id: name.to_owned() };
    let may = |perms, name: &str| Acl { perms, id: user(name) };
    let all = |name: &str| vec![may(perms::READ, name), may(perms::WRITE, "w")];
    match which {
        0 => ((Acl::open(), Acl::open()), Readers::Anyone),
        1 => ((Acl::open(), all("a")), Readers::These(vec![Id::anyone()], vec![user("a")])),
        2 => ((all("b"), all("a")), Readers::These(vec![user("b")], vec![user("a")])),
        // Too long to be kept.
        _ => ((Acl::open(), all(&"a".repeat(1_100))), Readers::Unknown),
    }
}

/// Puts the events into a builder, and gives what should be read.
fn write(events: &[Made], bytes: &mut Vec<u8>) -> Vec<(Key, Entry<'static>)> {
    let (mut builder, mut expected) = (ChunkBuilder::default(), Vec::new());
    let mut key = key(1_700_000_000_000, 5, 0);
    let (mut taken, mut whole) = (0, 0);
    for made in events {
        match made.command {
            Some(later) => key = Key { time_ms: key.time_ms + later, zxid: Zxid(key.zxid.0 + 1), ordinal: 0 },
            None if !expected.is_empty() => key.ordinal += 1,
            None => {}
        }
        let lock = LOCKS[made.who % 3];
        let name = match made.token % 7 {
            0 => format!("_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f6{}-lock-{:010}", made.who, key.ordinal),
            rest => format!("n-{rest}"),
        };
        let path = format!("{}/{name}", lock.trim_end_matches('/'));
        let (address, label) = (format!("10.0.0.{}:5000", made.who), vec![b'x'; made.who]);
        let session = SessionId(made.who as i64 - 2);
        let (acls, readers) = permissions(made.readers);
        let event = LockEvent {
            zxid: key.zxid,
            time_ms: key.time_ms,
            session,
            address: &address,
            label: &label,
            mode: made.mode,
            token: FencingToken(made.token),
            is_acquired: made.who % 2 == 0,
            acl: &acls.1,
            lock_acl: &acls.0,
            ..event(lock, &path, made.kind)
        };
        assert_eq!(builder.put(key, &event), Put::Done);
        let record = Record {
            lock: lock.to_owned().into(),
            name: name.into(),
            token: event.token,
            session,
            address: address.into(),
            label: label.into(),
            mode: made.mode,
            is_acquired: made.who % 2 == 0,
            readers,
            kind: made.kind,
        };
        assert_eq!(record.path(), path);
        expected.push((key, Entry::Lock(record)));
        if made.is_end {
            builder.entry_is_over();
            whole = expected.len();
        }
        if made.is_taken {
            assert_eq!(builder.is_whole(), whole == expected.len());
            assert_eq!(builder.finish_whole(bytes), whole - taken);
            taken = whole;
            assert_eq!(read(bytes, &filter(None, None), EVERYTHING).unwrap(), expected[..taken]);
        }
    }
    builder.finish(bytes);
    expected
}

proptest! {
    #[test]
    fn what_was_put_in_comes_out_however_it_is_taken(events in proptest::collection::vec(made(), 1..60)) {
        let mut bytes = Vec::new();
        let expected = write(&events, &mut bytes);
        prop_assert_eq!(&read(&bytes, &filter(None, None), EVERYTHING).unwrap(), &expected);
        let middle = expected[expected.len() / 2].0;
        for (range, lock, session) in [
            (Range { from: middle, before: Key::MAX }, None, None),
            (Range { from: Key::MIN, before: middle }, Some(LOCKS[1]), None),
            (EVERYTHING, Some(LOCKS[2]), Some(SessionId(0))),
            (EVERYTHING, None, Some(SessionId(-2))),
            (EVERYTHING, Some("/locks"), None),
        ] {
            let is_wanted = |(key, entry): &&(Key, Entry<'static>)| match entry {
                Entry::Lock(record) => range.holds(key)
                    && lock.is_none_or(|lock| lock == record.lock)
                    && session.is_none_or(|session| session == record.session),
                Entry::Gap(_) => false,
            };
            let expected: Vec<_> = expected.iter().filter(is_wanted).cloned().collect();
            prop_assert_eq!(read(&bytes, &filter(lock, session), range).unwrap(), expected);
        }
    }

    #[test]
    fn whatever_is_damaged_is_read_or_refused(
        events in proptest::collection::vec(made(), 1..20),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        write(&events, &mut bytes);
        let at = at.index(bytes.len());
        match is_cut {
            true => {
                bytes.truncate(at);
                // Between two chunks nothing can tell.
                let _ = read(&bytes, &filter(None, None), EVERYTHING);
            }
            false => {
                bytes[at] = byte;
                let _ = read(&bytes, &filter(None, None), EVERYTHING);
            }
        }
        for chunk in chunks(&bytes).map_while(Result::ok) {
            let _ = chunk.parties().count();
        }
    }
}
