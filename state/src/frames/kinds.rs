//! Every kind of request that may be large, with the state that it meets.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::{Attempt, Claim, Mode};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Request, Version};

use super::world::{World, acquire, create};
use crate::PLACES_MAX;
use crate::command::Command;

pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) prepare: fn(&mut World),
    /// With so many items, or so many bytes in it.
    pub(super) request: fn(usize) -> Request,
    pub(super) identities: fn() -> Arc<[Id]>,
    /// How one that fills a frame is refused before the log.
    pub(super) refused: Option<ErrorCode>,
    /// Whether the largest that is let in is carried out.
    pub(super) succeeds: bool,
}

const KIND: Kind = Kind {
    name: "",
    prepare: |_| (),
    request: |_| Request::CloseSession,
    identities: Arc::default,
    refused: None,
    succeeds: true,
};
const BAD: Option<ErrorCode> = Some(ErrorCode::BadArguments);

pub(super) const ALL: [Kind; 31] = [
    Kind { name: "create with data", request: |n| made("/z", n, Acl::shared_open()), ..KIND },
    Kind {
        name: "create of a long name",
        request: |n| one(&format!("/{}", "n".repeat(n))),
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "create of a deep path that is not there",
        request: |n| one(&deep(n + 1)),
        refused: BAD,
        succeeds: false,
        ..KIND
    },
    Kind { name: "setData", prepare: |w| w.make(paths("/z", 1)), request: |n| set("/z0", n), ..KIND },
    Kind {
        name: "setACL of many entries",
        prepare: |w| w.make(paths("/z", 1)),
        request: |n| set_acl(users((n + 1).min(4_500))),
        ..KIND
    },
    Kind {
        name: "multi of creates",
        request: |n| multi(n, |_| Op::Create(create("/e", CreateMode::EphemeralSequential))),
        ..KIND
    },
    Kind {
        name: "multi of containers",
        request: |n| multi(n, |at| Op::CreateContainer(create(&format!("/{at:x}"), CreateMode::Container))),
        ..KIND
    },
    Kind {
        name: "multi of creates by 62 identities",
        request: |n| multi(n, |_| by_auth(&[31])),
        identities: many_identities,
        refused: Some(ErrorCode::InvalidAcl),
        ..KIND
    },
    Kind {
        name: "multi of creates by 3 identities",
        request: |n| multi(n, |_| by_auth(&[31])),
        identities: three_identities,
        ..KIND
    },
    Kind {
        name: "multi of creates with other lists each",
        request: |n| multi(n, |at| by_auth(&[at as i32 & 31, at as i32 >> 5])),
        identities: three_identities,
        refused: Some(ErrorCode::InvalidAcl),
        ..KIND
    },
    Kind { name: "multi of creates with 4096 lists of their own", request: |n| multi(n, own_list), ..KIND },
    Kind {
        name: "multi of deep creates",
        prepare: |w| chain(w, 200),
        request: |n| {
            multi(n, |_| Op::Create(create(&format!("{}/e", deep(200)), CreateMode::PersistentSequential)))
        },
        ..KIND
    },
    Kind {
        name: "multi of creates that is taken back",
        request: |n| {
            multi(n, |at| {
                if at + 1 < n {
                    Op::Create(create("/e", CreateMode::EphemeralSequential))
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
        prepare: |w| w.make(paths("/d", 60_000)),
        request: |n| multi(n, |at| Op::Delete { path: format!("/d{at}"), version: Version::ANY }),
        ..KIND
    },
    Kind {
        name: "multi of sets",
        prepare: |w| w.make(paths("/z", 1)),
        request: |n| {
            multi(n, |_| Op::SetData(SetData { path: "/z0".into(), data: None, version: Version::ANY }))
        },
        ..KIND
    },
    Kind { name: "multi of checks", request: |n| multi(n, |_| check("/")), ..KIND },
    Kind {
        name: "multi of deep checks",
        prepare: |w| chain(w, 250),
        request: |n| multi(n, |_| check(&deep(250))),
        ..KIND
    },
    Kind {
        name: "multi of checks against a long list",
        prepare: long_list,
        request: |n| multi(n, |_| check("/z0")),
        identities: many_identities,
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "acquire of a deep lock",
        request: |n| Request::Acquire(vec![acquire(deep(n + 1), "p-")]),
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "acquire below a deep znode",
        prepare: |w| chain(w, 220),
        request: |n| Request::Acquire(vec![acquire(format!("{}{}", deep(220), deep(n + 1)), "p-")]),
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "acquire of many locks",
        request: |n| places(n + 1, |at| format!("/l{at}")),
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "acquire of 1,024 deep locks",
        request: |n| places(PLACES_MAX, |at| format!("/{at}{}", deep(n))),
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "acquire of 1,024 locks with long names",
        request: |n| places(PLACES_MAX, |at| format!("/{at}{}", "n".repeat(n))),
        ..KIND
    },
    Kind {
        name: "tagged acquire with a long prefix",
        request: |n| tagged(Request::Acquire(vec![acquire("/l".into(), &"p".repeat(n + 1))])),
        refused: BAD,
        ..KIND
    },
    Kind { name: "acquire with data", request: |n| Request::Acquire(vec![labelled(n)]), ..KIND },
    Kind {
        name: "release of 1,024 locks with long names",
        prepare: hold,
        request: |n| Request::Release((0..n.min(PLACES_MAX)).map(|at| claim(at, n / PLACES_MAX)).collect()),
        ..KIND
    },
    Kind {
        name: "verify of 1,024 locks with long names",
        prepare: hold,
        request: |n| Request::Verify((0..PLACES_MAX).map(|at| claim(at, n)).collect()),
        ..KIND
    },
    Kind {
        name: "abandon of 1,024 places with long names",
        prepare: hold,
        request: |n| {
            Request::Abandon(
                (0..PLACES_MAX)
                    .map(|at| Attempt { lock: format!("/l{at}"), prefix: "p".repeat(n + 1) })
                    .collect(),
            )
        },
        ..KIND
    },
    Kind { name: "convert with a long prefix", prepare: share, request: convert, refused: BAD, ..KIND },
    Kind {
        name: "release of a lock for which 3,000 readers wait",
        prepare: readers,
        request: |_| Request::Release(vec![claim(0, 0)]),
        ..KIND
    },
    Kind {
        name: "close of a session with 20,000 ephemerals",
        prepare: ephemerals,
        request: |_| Request::CloseSession,
        ..KIND
    },
];

pub(super) fn deep(levels: usize) -> String {
    "/a".repeat(levels)
}

fn paths(prefix: &'static str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |at| format!("{prefix}{at}"))
}

pub(super) fn chain(world: &mut World, levels: usize) {
    world.make((1..=levels).map(deep));
}

fn made(path: &str, data: usize, acl: Arc<[Acl]>) -> Request {
    let (data, acl) = (Some(Bytes::from(vec![7; data])), Some(acl));
    Request::Create2(Create { data, acl, ..create(path, CreateMode::Persistent) })
}

fn one(path: &str) -> Request {
    Request::Create2(create(path, CreateMode::Persistent))
}

fn set(path: &str, data: usize) -> Request {
    let data = Some(Bytes::from(vec![7; data]));
    Request::SetData(SetData { path: path.to_owned(), data, version: Version::ANY })
}

fn user(number: usize) -> Acl {
    let id = Id { scheme: "digest".to_owned(), id: format!("user{number}:{}", "h".repeat(28)) };
    Acl { perms: perms::ALL, id }
}

fn users(count: usize) -> Vec<Acl> {
    (0..count).map(user).collect()
}

fn set_acl(acl: Vec<Acl>) -> Request {
    Request::SetAcl(SetAcl { path: "/z0".to_owned(), acl: Some(acl.into()), version: Version::ANY })
}

fn multi(count: usize, op: impl Fn(usize) -> Op) -> Request {
    Request::Multi((0..count).map(op).collect())
}

fn check(path: &str) -> Op {
    Op::Check { path: path.to_owned(), version: Version::ANY }
}

/// Expands to all that the author has proven, once for each of the permissions.
fn by_auth(of: &[i32]) -> Op {
    let entry = |perms: &i32| Acl { perms: *perms, id: Id { scheme: "auth".to_owned(), id: String::new() } };
    let acl = Some(of.iter().map(entry).collect());
    Op::Create(Create { acl, ..create("/e", CreateMode::PersistentSequential) })
}

fn own_list(at: usize) -> Op {
    let acl = Some([user(at % 4_096)].into());
    Op::Create(Create { acl, ..create("/e", CreateMode::PersistentSequential) })
}

fn proven(count: usize, bytes: usize) -> Arc<[Id]> {
    let id = |at: usize| Id { scheme: "digest".to_owned(), id: format!("{at:03}:{}", "h".repeat(bytes)) };
    (0..count).map(id).collect()
}

fn many_identities() -> Arc<[Id]> {
    proven(62, 1_000)
}

fn three_identities() -> Arc<[Id]> {
    proven(3, 40)
}

fn long_list(world: &mut World) {
    world.make(paths("/z", 1));
    let acl = users(4_000).into_iter().chain(Acl::open()).collect();
    let set = SetAcl { path: "/z0".to_owned(), acl: Some(acl), version: Version::ANY };
    world.run(Command::SetAcl(set));
}

fn places(count: usize, lock: impl Fn(usize) -> String) -> Request {
    Request::Acquire((0..count).map(|at| acquire(lock(at), "p-")).collect())
}

fn labelled(data: usize) -> rowlock_proto::lock::Acquire {
    rowlock_proto::lock::Acquire { data: Some(Bytes::from(vec![7; data])), ..acquire("/l".into(), "p-") }
}

fn tagged(request: Request) -> Request {
    Request::Tagged { id: 1, acked: 0, request: Box::new(request) }
}

fn hold(world: &mut World) {
    let all = (0..PLACES_MAX).map(|at| acquire(format!("/l{at}"), "p-"));
    world.run(Command::Acquire(all.collect()));
}

/// One that is held, and as long as wanted if it is not.
fn claim(at: usize, longer: usize) -> Claim {
    Claim { path: format!("/l{at}/p-0000000000{}", "0".repeat(longer)), token: FencingToken(2) }
}

fn share(world: &mut World) {
    let shared = rowlock_proto::lock::Acquire { mode: Mode::Shared, ..labelled(500_000) };
    world.run(Command::Acquire(vec![shared]));
}

fn convert(bytes: usize) -> Request {
    let claim = Claim { path: "/l/p-0000000000".to_owned(), token: FencingToken(2) };
    Request::Convert { claim, mode: Mode::Exclusive, prefix: "x".repeat(bytes + 1) }
}

fn readers(world: &mut World) {
    world.run(Command::Acquire(vec![acquire("/l0".to_owned(), "p-")]));
    for at in 0..3_000 {
        let reader = rowlock_proto::lock::Acquire {
            mode: Mode::Shared,
            ..acquire("/l0".to_owned(), &format!("r{at}-"))
        };
        world.run(Command::Acquire(vec![reader]));
    }
}

fn ephemerals(world: &mut World) {
    let op = |at| Op::Create(create(&format!("/e{at}"), CreateMode::Ephemeral));
    world.run(Command::Multi((0..20_000).map(op).collect()));
}
