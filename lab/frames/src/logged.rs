//! Requests that the server writes to the log.

use rowlock_proto::acl::{Acl, perms};
use rowlock_proto::lock::{ASK_BY_MAX_BYTES, ASK_REASON_MAX_BYTES, Acquire, Ask, Attempt, Claim, Mode};
use rowlock_proto::request::{Op, SetData};
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Request, Version};

use crate::make::{
    BAD, KIND, by_auth, chain, check, claim, deep, hold, labelled, many, multi, one, own_list, places,
    readers, set, set_acl, user, with_data,
};
use crate::{EPHEMERALS, Identities, Kind, PLACES_MAX, READERS, create};

const MANY_IDENTITIES: Identities = Identities { count: 62, bytes: 1_000 };
const THREE_IDENTITIES: Identities = Identities { count: 3, bytes: 72 };
/// Time to live of TTL znodes.
const HOUR_MS: i64 = 3_600_000;

/// Requests with ACLs, on single znodes, on many znodes, on locks, and requests that end something with many
/// waiters or znodes.
pub const LOGGED: &[&[Kind]] = &[&LISTS, &ZNODES, &MULTIS, &LOCKS, &ENDS];

const ZNODES: [Kind; 10] = [
    Kind {
        name: "create with data, answered without a Stat",
        request: |at, n| Request::Create(with_data(&format!("{}/z", at.root), n, CreateMode::Persistent)),
        ..KIND
    },
    Kind {
        name: "create with data",
        request: |at, n| Request::Create2(with_data(&format!("{}/z", at.root), n, CreateMode::Persistent)),
        ..KIND
    },
    Kind {
        name: "createTTL with data",
        request: |at, n| {
            let path = format!("{}/z", at.root);
            Request::CreateTtl(with_data(&path, n, CreateMode::PersistentWithTtl), HOUR_MS)
        },
        ..KIND
    },
    Kind {
        name: "createContainer with data",
        request: |at, n| {
            Request::CreateContainer(with_data(&format!("{}/z", at.root), n, CreateMode::Container))
        },
        ..KIND
    },
    Kind {
        name: "create of a long name",
        request: |at, n| one(&format!("{}/{}", at.root, "n".repeat(n))),
        refused: BAD,
        admitted: 4_090,
        ..KIND
    },
    Kind {
        name: "create of a deep path that does not exist",
        request: |at, n| one(&deep(at.root, n + 1)),
        refused: BAD,
        admitted: 253,
        succeeds: false,
        ..KIND
    },
    Kind {
        name: "setData",
        prepare: |root| many(root, "z", 1, CreateMode::Persistent),
        request: |at, n| set(&format!("{}/z0", at.root), n),
        ..KIND
    },
    Kind {
        name: "setData of a long path that does not exist",
        request: |at, n| set(&format!("{}/{}", at.root, "n".repeat(n)), 0),
        succeeds: false,
        ..KIND
    },
    Kind {
        name: "delete of a long path that does not exist",
        request: |at, n| Request::Delete { path: deep(at.root, n), version: Version::ANY },
        succeeds: false,
        ..KIND
    },
    Kind {
        name: "setACL of many entries",
        prepare: |root| many(root, "z", 1, CreateMode::Persistent),
        request: |at, n| set_acl(&format!("{}/z0", at.root), (0..(n + 1).min(4_500)).map(user)),
        ..KIND
    },
];

const LISTS: [Kind; 5] = [
    Kind {
        name: "multi of creates by 62 identities",
        request: |at, n| multi(n, |_| by_auth(at.root, &[perms::ALL])),
        identities: MANY_IDENTITIES,
        refused: Some(ErrorCode::InvalidAcl),
        ..KIND
    },
    Kind {
        name: "multi of creates by 3 identities",
        request: |at, n| multi(n, |_| by_auth(at.root, &[perms::ALL])),
        identities: THREE_IDENTITIES,
        ..KIND
    },
    Kind {
        name: "multi of creates with a different ACL each",
        request: |at, n| multi(n, |number| by_auth(at.root, &[number as i32 & 31, number as i32 >> 5])),
        identities: THREE_IDENTITIES,
        refused: Some(ErrorCode::InvalidAcl),
        admitted: 15,
        ..KIND
    },
    Kind {
        name: "multi of creates with 4096 distinct ACLs",
        request: |at, n| multi(n, |number| own_list(at.root, number)),
        ..KIND
    },
    Kind {
        name: "multi of checks against a long ACL",
        prepare: |root| {
            let mut before = many(root, "z", 1, CreateMode::Persistent);
            before.push(set_acl(&format!("{root}/z0"), (0..4_000).map(user).chain(Acl::open())));
            before
        },
        request: |at, n| multi(n, |_| check(&format!("{}/z0", at.root))),
        identities: MANY_IDENTITIES,
        refused: BAD,
        admitted: 12,
        ..KIND
    },
];

const MULTIS: [Kind; 9] = [
    Kind {
        name: "multi of creates",
        request: |at, n| {
            multi(n, |_| Op::Create(create(&format!("{}/e", at.root), CreateMode::EphemeralSequential)))
        },
        ..KIND
    },
    Kind {
        name: "multi of containers",
        request: |at, n| {
            multi(n, |number| {
                Op::CreateContainer(create(&format!("{}/{number:x}", at.root), CreateMode::Container))
            })
        },
        ..KIND
    },
    Kind {
        name: "multi of znodes with a time to live",
        request: |at, n| {
            multi(n, |number| {
                let path = format!("{}/{number:x}", at.root);
                Op::CreateTtl(create(&path, CreateMode::PersistentWithTtl), HOUR_MS)
            })
        },
        ..KIND
    },
    Kind {
        name: "multi of deep creates",
        prepare: |root| chain(root, 200),
        request: |at, n| {
            multi(n, |_| {
                Op::Create(create(&format!("{}/e", deep(at.root, 200)), CreateMode::PersistentSequential))
            })
        },
        ..KIND
    },
    Kind {
        name: "multi of creates that is rolled back",
        request: |at, n| {
            multi(n, |number| {
                if number + 1 < n {
                    Op::Create(create(&format!("{}/e", at.root), CreateMode::EphemeralSequential))
                } else {
                    check("/nowhere")
                }
            })
        },
        succeeds: false,
        ..KIND
    },
    Kind {
        name: "multi of deletes",
        prepare: |root| many(root, "d", 40_000, CreateMode::Persistent),
        request: |at, n| {
            multi(n, |number| Op::Delete { path: format!("{}/d{number}", at.root), version: Version::ANY })
        },
        ..KIND
    },
    Kind {
        name: "multi of sets",
        prepare: |root| many(root, "z", 1, CreateMode::Persistent),
        request: |at, n| {
            let path = || format!("{}/z0", at.root);
            multi(n, |_| Op::SetData(SetData { path: path(), data: None, version: Version::ANY }))
        },
        ..KIND
    },
    Kind { name: "multi of checks", request: |_, n| multi(n, |_| check("/")), ..KIND },
    Kind {
        name: "multi of deep checks",
        prepare: |root| chain(root, 250),
        request: |at, n| multi(n, |_| check(&deep(at.root, 250))),
        ..KIND
    },
];

const LOCKS: [Kind; 13] = [
    Kind {
        name: "acquire of a deep lock",
        request: |at, n| Request::Acquire([Acquire::exclusive(deep(at.root, n + 1), "p-")].into()),
        refused: BAD,
        admitted: 32,
        ..KIND
    },
    Kind {
        name: "acquire below a deep znode",
        prepare: |root| chain(root, 220),
        request: |at, n| {
            let lock = format!("{}{}", deep(at.root, 220), deep("", n + 1));
            Request::Acquire([Acquire::exclusive(lock, "p-")].into())
        },
        refused: BAD,
        admitted: 32,
        ..KIND
    },
    Kind {
        name: "acquire of many locks",
        request: |at, n| places(n + 1, |number| format!("{}/l{number}", at.root)),
        refused: BAD,
        admitted: PLACES_MAX - 1,
        ..KIND
    },
    Kind {
        name: "acquire of 1,024 deep locks",
        request: |at, n| places(PLACES_MAX, |number| format!("{}/{number}{}", at.root, deep("", n))),
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "acquire of 1,024 locks with long names",
        request: |at, n| places(PLACES_MAX, |number| format!("{}/{number}{}", at.root, "n".repeat(n))),
        ..KIND
    },
    Kind {
        name: "tagged acquire with a long prefix",
        request: |at, n| {
            let request =
                Request::Acquire([Acquire::exclusive(format!("{}/l", at.root), "p".repeat(n + 1))].into());
            // A different id for each different request.
            Request::Tagged { id: n as u64 + 1, acked: 0, request: Box::new(request) }
        },
        refused: BAD,
        admitted: 4_076,
        ..KIND
    },
    Kind {
        name: "acquire with data",
        request: |at, n| Request::Acquire([labelled(at.root, n)].into()),
        ..KIND
    },
    Kind {
        name: "release of 1,024 locks with long names",
        prepare: hold,
        request: |at, n| {
            let each = |number| claim(at, number, n / PLACES_MAX);
            Request::Release((0..n.min(PLACES_MAX)).map(each).collect())
        },
        ..KIND
    },
    Kind {
        name: "verify of 1,024 locks with long names",
        prepare: hold,
        request: |at, n| Request::Verify((0..PLACES_MAX).map(|number| claim(at, number, n)).collect()),
        ..KIND
    },
    Kind {
        name: "abandon of 1,024 places with long names",
        prepare: hold,
        request: |at, n| {
            let prefix = || "p".repeat(n + 1);
            let attempt = |number| Attempt { lock: format!("{}/l{number}", at.root), prefix: prefix() };
            Request::Abandon((0..PLACES_MAX).map(attempt).collect())
        },
        ..KIND
    },
    Kind {
        name: "convert with a long prefix",
        prepare: |root| {
            vec![Request::Acquire([Acquire { mode: Mode::Shared, ..labelled(root, 500_000) }].into())]
        },
        request: |at, n| {
            let claim = Claim { path: format!("{}/l/p-0000000000", at.root).into(), token: at.token };
            Request::Convert { claim, mode: Mode::Exclusive, prefix: "x".repeat(n + 1) }
        },
        refused: BAD,
        admitted: 4_076,
        ..KIND
    },
    Kind {
        name: "forceRelease of a long path that does not exist",
        request: |at, n| {
            Request::ForceRelease(Claim { path: deep(at.root, n + 2).into(), token: FencingToken(1) })
        },
        ..KIND
    },
    Kind {
        name: "ask for a lock of a long path that does not exist",
        request: |at, n| {
            let (reason, by) = ("r".repeat(ASK_REASON_MAX_BYTES), "b".repeat(ASK_BY_MAX_BYTES));
            Request::Ask(Ask { lock: deep(at.root, n + 2), reason, by, within_ms: 1_000 })
        },
        ..KIND
    },
];

const ENDS: [Kind; 2] = [
    Kind {
        name: "release of a lock with many waiting readers",
        prepare: |root| readers(root, READERS),
        request: |at, _| Request::Release([claim(at, 0, 0)].into()),
        ..KIND
    },
    Kind {
        name: "close of a session with many ephemerals",
        prepare: |root| many(root, "e", EPHEMERALS, CreateMode::Ephemeral),
        request: |_, _| Request::CloseSession,
        ..KIND
    },
];
