//! Requests as lines of text, for tests in the form of stories.
//!
//! A line is a verb, its arguments, and options `key=value`, separated by blanks:
//! `create /q/n- data=x mode=es acl=rw:digest:u:h,r:world:anyone`. `data=` is empty, no `data` is null.
//! Modes: p, e, s, es, c, ttl, ttls, or `flags=N`. Permissions: c d r w a, or `all`. `acl=null`, `acl=empty`.
//!
//! Locks: `acquire LOCK PREFIX [mode=x|s|N] [limit=N] [try=1] [owner=session|N|under:PLACE] [hold=MS]
//! [delay=MS] [min=MS] [lapses=1] [data=]`, several acquires separated by `;`; `release PATH TOKEN`, `verify
//! PATH TOKEN` and `abandon LOCK PREFIX` likewise; `convert PATH TOKEN PREFIX mode=`; `force PATH TOKEN`;
//! `ask LOCK BY REASON [within=MS]`.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Id, perms};
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Mode, Owner, SessionOptions};
use rowlock_proto::request::{Create, Op, PathWatch, ReadOp, SetAcl, SetData, SetWatches};
use rowlock_proto::{Acl, CreateMode, FencingToken, Request, Version, Zxid};
use rowlock_stories::Words;

/// Returns the paths of an option, separated by commas.
fn paths(words: &Words<'_>, key: &str) -> Vec<String> {
    words.option(key).map_or(Vec::new(), |paths| paths.split(',').map(str::to_owned).collect())
}

fn data(words: &Words<'_>) -> Option<Bytes> {
    words.option("data").map(|data| Bytes::copy_from_slice(data.as_bytes()))
}

fn version(words: &Words<'_>) -> Version {
    Version(words.number("v", -1))
}

fn path(words: &Words<'_>) -> String {
    words.at(1).to_owned()
}

fn set_data(words: &Words<'_>) -> SetData {
    SetData { path: path(words), data: data(words), version: version(words) }
}

fn create(words: &Words<'_>) -> Create {
    let mode = match words.option("mode").unwrap_or("p") {
        "p" => CreateMode::Persistent,
        "e" => CreateMode::Ephemeral,
        "s" => CreateMode::PersistentSequential,
        "es" => CreateMode::EphemeralSequential,
        "c" => CreateMode::Container,
        "ttl" => CreateMode::PersistentWithTtl,
        "ttls" => CreateMode::PersistentSequentialWithTtl,
        other => panic!("mode={other}"),
    };
    let flags = words.number("flags", mode.flags());
    Create {
        path: path(words),
        data: data(words),
        acl: acl(words.option("acl").unwrap_or("all:world:anyone")).map(Arc::from),
        flags,
    }
}

/// Parses a write that the log takes. `None`: the line is another one.
pub fn write(words: &Words<'_>, line: &str) -> Option<Request> {
    let rest = line.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
    let parts = || rest.split(';').filter(|part| !part.trim().is_empty()).map(Words::new);
    Some(match words.at(0) {
        "create" => match words.option("ttl_ms") {
            None => Request::Create2(create(words)),
            Some(_) => Request::CreateTtl(create(words), words.number("ttl_ms", 0)),
        },
        "delete" => Request::Delete { path: path(words), version: version(words) },
        "set" => Request::SetData(set_data(words)),
        "setacl" => {
            let acl = acl(words.option("acl").unwrap_or_else(|| panic!("acl="))).map(Arc::from);
            Request::SetAcl(SetAcl { path: path(words), acl, version: version(words) })
        }
        "multi" => Request::Multi(parts().map(|part| op(&part)).collect()),
        "close" => Request::CloseSession,
        "acquire" => Request::Acquire(parts().map(|part| acquire(&part)).collect()),
        "release" => Request::Release(parts().map(|part| claim(&part, 0)).collect()),
        "verify" => Request::Verify(parts().map(|part| claim(&part, 0)).collect()),
        "abandon" => Request::Abandon(parts().map(|part| attempt(&part)).collect()),
        "convert" => {
            Request::Convert { claim: claim(words, 1), mode: mode(words), prefix: words.at(3).to_owned() }
        }
        "force" => Request::ForceRelease(claim(words, 1)),
        "ask" => Request::Ask(Ask {
            lock: words.at(1).to_owned(),
            by: words.at(2).to_owned(),
            reason: words.at(3).to_owned(),
            within_ms: words.number("within", 0),
        }),
        _ => return None,
    })
}

/// Parses any request of a client: a write, or `create1`, `container`, `get`, `exists`, `ls` (with stat),
/// `ls1`, `getacl`, `count`, `ephemerals`, each with `watch=1` where ZooKeeper has a watch; `multiread
/// get PATH;ls PATH`; `sync`, `ping`, `whoami`, `check`, `auth SCHEME SECRET`, `sasl TEXT`, `report
/// PATH`, `options grace=MS`; `addwatch PATH mode=N`, `checkwatches PATH kind=N`, `removewatches PATH
/// kind=N`, `setwatches zxid=N [data=] [exist=] [child=]`; `reconfig JOINING id=N`; `tagged ID ACKED
/// REQUEST`.
pub fn request(words: &Words<'_>, line: &str) -> Request {
    if let Some(write) = write(words, line) {
        return write;
    }
    let rest = line.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
    let watch = PathWatch {
        path: words.find(1).unwrap_or_default().to_owned(),
        watch: words.option("watch").is_some(),
    };
    match words.at(0) {
        "create1" => Request::Create(create(words)),
        "container" => Request::CreateContainer(create(words)),
        "get" => Request::GetData(watch),
        "exists" => Request::Exists(watch),
        "ls" => Request::GetChildren2(watch),
        "ls1" => Request::GetChildren(watch),
        "getacl" => Request::GetAcl(path(words)),
        "count" => Request::GetAllChildrenNumber(path(words)),
        "ephemerals" => Request::GetEphemerals(path(words)),
        "multiread" => Request::MultiRead(rest.split(';').map(|op| read_op(&Words::new(op))).collect()),
        "sync" => Request::Sync(path(words)),
        "ping" => Request::Ping,
        "whoami" => Request::WhoAmI,
        "check" => Request::Check { path: path(words), version: version(words) },
        "auth" => {
            let auth = Bytes::copy_from_slice(words.at(2).as_bytes());
            Request::Auth { auth_type: 0, scheme: words.at(1).to_owned(), auth }
        }
        "sasl" => Request::Sasl(Some(Bytes::copy_from_slice(words.at(1).as_bytes()))),
        "report" => Request::Report(path(words)),
        "options" => {
            Request::SessionOptions(SessionOptions { disconnect_grace_ms: words.number("grace", 0) })
        }
        "addwatch" => Request::AddWatch { path: path(words), mode: words.number("mode", 0) },
        "checkwatches" => Request::CheckWatches { path: path(words), kind: words.number("kind", 3) },
        "removewatches" => Request::RemoveWatches { path: path(words), kind: words.number("kind", 3) },
        "setwatches" => Request::SetWatches(SetWatches {
            relative_zxid: Zxid(words.number("zxid", 0)),
            data: paths(words, "data"),
            exist: paths(words, "exist"),
            child: paths(words, "child"),
            ..SetWatches::default()
        }),
        "reconfig" => {
            let (joining, config_id) = rest.rsplit_once(" id=").unwrap_or((rest, "-1"));
            let config_id = config_id.parse().unwrap_or_else(|_| panic!("id={config_id}"));
            let joining = Some(joining.to_owned());
            Request::Reconfig { joining, leaving: None, new_members: None, config_id }
        }
        "tagged" => {
            let inner = rest.splitn(3, ' ').nth(2).unwrap_or_else(|| panic!("tagged ID ACKED REQUEST"));
            let request = Box::new(self::request(&Words::new(inner), inner));
            Request::Tagged { id: words.parse(1), acked: words.parse(2), request }
        }
        other => panic!("unknown verb {other}"),
    }
}

/// Parses an operation of a multi.
pub fn op(words: &Words<'_>) -> Op {
    match words.at(0) {
        "create" => Op::Create(create(words)),
        "create2" => Op::Create2(create(words)),
        "container" => Op::CreateContainer(create(words)),
        "ttl" => Op::CreateTtl(create(words), words.number("ttl_ms", 0)),
        "delete" => Op::Delete { path: path(words), version: version(words) },
        "set" => Op::SetData(set_data(words)),
        "check" => Op::Check { path: path(words), version: version(words) },
        other => panic!("{other} is not an operation of multi"),
    }
}

fn read_op(words: &Words<'_>) -> ReadOp {
    match words.at(0) {
        "get" => ReadOp::GetData(path(words)),
        "ls" => ReadOp::GetChildren(path(words)),
        other => panic!("{other} is not an operation of multiread"),
    }
}

fn acquire(words: &Words<'_>) -> Acquire {
    Acquire {
        lock: words.at(0).into(),
        prefix: words.at(1).into(),
        data: data(words),
        acl: Some(Acl::shared_open()),
        mode: mode(words),
        limit: words.number("limit", 0),
        wait: words.option("try").is_none(),
        owner: match words.option("owner") {
            None => Owner::Unnamed,
            Some("session") => Owner::Session,
            Some(owner) => match owner.strip_prefix("under:") {
                Some(place) => Owner::under(place),
                None => Owner::Named(words.number("owner", 0)),
            },
        },
        max_hold_ms: words.number("hold", 0),
        lock_delay_ms: words.number("delay", 0),
        min_hold_ms: words.number("min", 0),
        min_hold_lapses: words.option("lapses").is_some(),
    }
}

fn attempt(words: &Words<'_>) -> Attempt {
    Attempt { lock: words.at(0).to_owned(), prefix: words.at(1).to_owned() }
}

fn mode(words: &Words<'_>) -> Mode {
    match words.option("mode").unwrap_or("x") {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        _ => Mode::Permits(words.number("mode", 0)),
    }
}

/// Parses a claim, `PATH TOKEN`, from the argument number `at` on.
pub fn claim(words: &Words<'_>, at: usize) -> Claim {
    Claim { path: words.at(at).into(), token: FencingToken(words.parse(at + 1)) }
}

/// Parses an identity, `SCHEME:ID`.
pub fn id(text: &str) -> Id {
    let (scheme, id) = text.split_once(':').unwrap_or_else(|| panic!("{text} is not scheme:id"));
    Id { scheme: scheme.to_owned(), id: id.to_owned() }
}

fn acl(text: &str) -> Option<Vec<Acl>> {
    match text {
        "null" => None,
        "empty" => Some(Vec::new()),
        _ => Some(text.split(',').map(entry).collect()),
    }
}

fn entry(text: &str) -> Acl {
    let (letters, who) =
        text.split_once(':').unwrap_or_else(|| panic!("{text} is not PERMISSIONS:scheme:id"));
    let bit = |letter| match letter {
        'r' => perms::READ,
        'w' => perms::WRITE,
        'c' => perms::CREATE,
        'd' => perms::DELETE,
        'a' => perms::ADMIN,
        other => panic!("permission {other}"),
    };
    let perms =
        if letters == "all" { perms::ALL } else { letters.chars().map(bit).fold(0, |all, one| all | one) };
    Acl { perms, id: id(who) }
}
