//! Random commands over few names, so that they meet: paths up to three deep, up to a handful of sessions
//! (also ended ones and stale attachments), three identities, right and wrong versions, and multis of up to
//! six operations.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{FencingToken, NodeId, Version};
use rowlock_state::command::{Command, Stamp};

/// What to propose; sessions are numbered in order of their opening.
#[derive(Clone, Debug)]
pub enum Step {
    /// On behalf of a session, with its attachment or the one before.
    Client {
        session: usize,
        stale: bool,
        who: Vec<Id>,
        command: Command,
    },
    Open {
        node: NodeId,
        timeout_ms: u32,
    },
    Attach {
        session: usize,
        right: bool,
        timeout_ms: u32,
    },
    Expire {
        session: usize,
        stale: bool,
    },
    Cluster(Command),
}

/// Two sessions and then anything; half of the times there is a quota on `/a` and perhaps one
/// inside on `/a/b`, which would rarely come about by chance.
pub fn steps() -> impl Strategy<Value = Vec<(Stamp, Step)>> {
    let quotas = prop::option::of((limits(), prop::option::of(limits())));
    (quotas, prop::collection::vec(stamped_step(), 1..80)).prop_map(|(quotas, steps)| {
        let sessions = [1, 2].map(|node| Step::Open { node: NodeId(node), timeout_ms: 4_000 });
        let quotas = quotas.map(|(outer, inner)| with_quotas(outer, inner));
        let opening = sessions.into_iter().chain(quotas).map(|step| (Stamp::default(), step));
        opening.chain(steps).collect()
    })
}

fn with_quotas(outer: Bytes, inner: Option<Bytes>) -> Step {
    let create = |path: &str, data: &Bytes| {
        let path = path.to_owned();
        Op::Create(Create { path, data: Some(data.clone()), acl: Some(Acl::shared_open()), flags: 0 })
    };
    let none = Bytes::new();
    let mut ops = vec![
        create("/a", &none),
        create("/a/b", &none),
        create("/zookeeper/quota/a", &none),
        create("/zookeeper/quota/a/zookeeper_limits", &outer),
        create("/zookeeper/quota/a/zookeeper_stats", &none),
        create("/zookeeper/quota/a/b", &none),
    ];
    ops.extend(inner.map(|inner| create("/zookeeper/quota/a/b/zookeeper_limits", &inner)));
    Step::Client { session: 0, stale: false, who: Vec::new(), command: Command::Client(Request::Multi(ops)) }
}

/// A step with the leader's clock, which may jump back, and its wish to enforce quotas.
fn stamped_step() -> impl Strategy<Value = (Stamp, Step)> {
    let stamp = (0i64..10_000, any::<bool>()).prop_map(|(time_ms, enforce_quota)| Stamp {
        time_ms,
        enforce_quota,
        ..Stamp::default()
    });
    (stamp, step())
}

fn step() -> impl Strategy<Value = Step> {
    let client = (0usize..5, prop::bool::weighted(0.05), who(), command());
    prop_oneof![
        30 => client.prop_map(|(session, stale, who, command)| Step::Client { session, stale, who, command }),
        3 => (0u64..200, 1000u32..9000).prop_map(|(node, timeout_ms)| Step::Open { node: NodeId(node), timeout_ms }),
        2 => (0usize..5, any::<bool>(), 1000u32..9000)
            .prop_map(|(session, right, timeout_ms)| Step::Attach { session, right, timeout_ms }),
        1 => (0usize..5, any::<bool>()).prop_map(|(session, stale)| Step::Expire { session, stale }),
        3 => path().prop_map(|path| Step::Cluster(Command::Reap { path })),
        1 => "[a-z]{0,9}".prop_map(|config| Step::Cluster(Command::Configure { config })),
        1 => Just(Step::Cluster(Command::Noop)),
        1 => prop_oneof![0i64..200, Just(i64::MAX)]
            .prop_map(|above| Step::Cluster(Command::RaiseTokens { above: FencingToken(above) })),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        12 => (create(), ttl_ms()).prop_map(|(create, ttl_ms)| Command::Client(match ttl_ms {
            None => Request::Create2(create),
            Some(ttl_ms) => Request::CreateTtl(create, ttl_ms),
        })),
        5 => (path(), version()).prop_map(|(path, version)| Command::Client(Request::Delete { path, version })),
        4 => set_data().prop_map(|set| Command::Client(Request::SetData(set))),
        2 => (path(), acl(), version()).prop_map(|(path, acl, version)| Command::Client(Request::SetAcl(SetAcl { path, acl, version }))),
        8 => prop::collection::vec(op(), 0..6).prop_map(|ops| Command::Client(Request::Multi(ops))),
        1 => Just(Command::Client(Request::CloseSession)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => create().prop_map(Op::Create),
        2 => create().prop_map(Op::Create2),
        1 => create().prop_map(Op::CreateContainer),
        1 => (create(), 0i64..3000).prop_map(|(create, ttl_ms)| Op::CreateTtl(create, ttl_ms)),
        4 => (path(), version()).prop_map(|(path, version)| Op::Delete { path, version }),
        4 => set_data().prop_map(Op::SetData),
        1 => (path(), version()).prop_map(|(path, version)| Op::Check { path, version }),
    ]
}

fn create() -> impl Strategy<Value = Create> {
    (path(), data(), acl(), -1i32..8).prop_map(|(path, data, acl, flags)| Create { path, data, acl, flags })
}

fn set_data() -> impl Strategy<Value = SetData> {
    (path(), data(), version()).prop_map(|(path, data, version)| SetData { path, data, version })
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        30 => "(/[ab]){1,3}",
        5 => "(/[ab]){0,2}/",
        2 => "(/[ab]){1,2}/[ab]0{9}[0-3]",
        8 => "/zookeeper/quota(/[ab]){1,2}(/zookeeper_(limits|stats))?",
        2 => prop::sample::select(vec![
            "", "a", "//", "//a", "//b", "///a", "/a/.", "/a/..", "/a//b", "a/b", "/a/\0", "/a/\u{1}", "/zookeeper", "/zookeeper/config",
            "/zookeeper/quota", "/zookeeper/a", "/zookeeper/quota/zookeeper_limits", "/zookeeper/quota/zookeeper_stats",
        ]).prop_map(str::to_owned),
    ]
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    prop_oneof![
        6 => prop::option::of(prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)),
        1 => limits().prop_map(Some),
    ]
}

fn limits() -> impl Strategy<Value = Bytes> {
    (0i64..5, -1i64..40).prop_map(|(count, bytes)| {
        format!("count=1,bytes=1=;byteHardLimit={bytes};countHardLimit={count}").into()
    })
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![3 => Just(Version::ANY), 2 => (0i32..4).prop_map(Version)]
}

fn ttl_ms() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![3 => Just(None), 2 => (-1i64..3000).prop_map(Some), 1 => Just(Some(0x100_0000_0000))]
}

fn digest(user: &str) -> Id {
    Id { scheme: "digest".to_owned(), id: format!("{user}:hash") }
}

fn who() -> impl Strategy<Value = Vec<Id>> {
    let sup = Id { scheme: "super".to_owned(), id: String::new() };
    prop::sample::subsequence(vec![digest("u"), digest("v"), sup], 0..=2)
}

fn acl() -> impl Strategy<Value = Option<Arc<[Acl]>>> {
    let id = prop_oneof![
        4 => Just(Id::anyone()),
        2 => Just(digest("u")),
        1 => Just(Id { scheme: "auth".to_owned(), id: String::new() }),
        1 => Just(Id { scheme: "odd".to_owned(), id: "x".to_owned() }),
    ];
    let entry = (0i32..32, id).prop_map(|(perms, id)| Acl { perms, id });
    let list = prop_oneof![
        10 => Just(Some(Acl::open())),
        1 => Just(Some(vec![Acl { perms: perms::READ, id: Id::anyone() }])),
        2 => (0u32..5).prop_map(|bit| Some(vec![Acl { perms: perms::ALL & !(1 << bit), id: Id::anyone() }])),
        3 => prop::option::weighted(0.9, prop::collection::vec(entry, 0..4)),
    ];
    list.prop_map(|list| list.map(Arc::from))
}
