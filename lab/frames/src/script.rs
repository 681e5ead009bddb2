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

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Id, perms};
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Mode, Owner, SessionOptions};
use rowlock_proto::request::{Create, Op, PathWatch, ReadOp, SetAcl, SetData, SetWatches};
use rowlock_proto::{Acl, CreateMode, FencingToken, Request, Version, Zxid};

/// A line or a part of one, taken apart.
pub struct Words<'a> {
    positional: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    pub fn new(line: &'a str) -> Self {
        let (options, positional) = line
            .split_whitespace()
            .partition::<Vec<_>, _>(|word| word.contains('=') && !word.starts_with('/'));
        let options = options.into_iter().filter_map(|word| word.split_once('=')).collect();
        Words { positional, options }
    }

    /// Returns the argument number `at`; the verb is number 0. `''` stands for the empty string.
    pub fn at(&self, at: usize) -> &'a str {
        match self.positional.get(at).copied() {
            Some("''") => "",
            Some(word) => word,
            None => panic!("argument {at} is missing after {:?}", self.positional),
        }
    }

    pub fn option(&self, key: &str) -> Option<&'a str> {
        self.options.get(key).copied()
    }

    pub fn number<T: std::str::FromStr>(&self, key: &str, default: T) -> T {
        self.option(key).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{key}={text}")))
    }

    /// Parses the argument number `at`.
    pub fn number_at<T: std::str::FromStr>(&self, at: usize) -> T {
        self.at(at).parse().unwrap_or_else(|_| panic!("{} is no number", self.at(at)))
    }

    /// Parses the argument number `at`, if there is one.
    pub fn number_or<T: std::str::FromStr>(&self, at: usize, default: T) -> T {
        if at < self.positional.len() { self.number_at(at) } else { default }
    }

    /// Returns the paths of an option, separated by commas.
    fn paths(&self, key: &str) -> Vec<String> {
        self.option(key).map_or(Vec::new(), |paths| paths.split(',').map(str::to_owned).collect())
    }

    fn data(&self) -> Option<Bytes> {
        self.option("data").map(|data| Bytes::copy_from_slice(data.as_bytes()))
    }

    fn version(&self) -> Version {
        Version(self.number("v", -1))
    }

    fn path(&self) -> String {
        self.at(1).to_owned()
    }

    fn set_data(&self) -> SetData {
        SetData { path: self.path(), data: self.data(), version: self.version() }
    }

    fn create(&self) -> Create {
        let mode = match self.option("mode").unwrap_or("p") {
            "p" => CreateMode::Persistent,
            "e" => CreateMode::Ephemeral,
            "s" => CreateMode::PersistentSequential,
            "es" => CreateMode::EphemeralSequential,
            "c" => CreateMode::Container,
            "ttl" => CreateMode::PersistentWithTtl,
            "ttls" => CreateMode::PersistentSequentialWithTtl,
            other => panic!("mode={other}"),
        };
        let flags = self.number("flags", mode.flags());
        Create {
            path: self.path(),
            data: self.data(),
            acl: acl(self.option("acl").unwrap_or("all:world:anyone")).map(Arc::from),
            flags,
        }
    }

    /// Parses a write that the log takes. `None`: the line is another one.
    pub fn write(&self, line: &str) -> Option<Request> {
        let rest = line.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
        let parts = || rest.split(';').filter(|part| !part.trim().is_empty()).map(Words::new);
        Some(match self.at(0) {
            "create" => match self.option("ttl_ms") {
                None => Request::Create2(self.create()),
                Some(_) => Request::CreateTtl(self.create(), self.number("ttl_ms", 0)),
            },
            "delete" => Request::Delete { path: self.path(), version: self.version() },
            "set" => Request::SetData(self.set_data()),
            "setacl" => {
                let acl = acl(self.option("acl").unwrap_or_else(|| panic!("acl="))).map(Arc::from);
                Request::SetAcl(SetAcl { path: self.path(), acl, version: self.version() })
            }
            "multi" => Request::Multi(parts().map(|op| op.op()).collect()),
            "close" => Request::CloseSession,
            "acquire" => Request::Acquire(parts().map(|part| part.acquire()).collect()),
            "release" => Request::Release(parts().map(|part| part.claim(0)).collect()),
            "verify" => Request::Verify(parts().map(|part| part.claim(0)).collect()),
            "abandon" => Request::Abandon(parts().map(|part| part.attempt()).collect()),
            "convert" => {
                Request::Convert { claim: self.claim(1), mode: self.mode(), prefix: self.at(3).to_owned() }
            }
            "force" => Request::ForceRelease(self.claim(1)),
            "ask" => Request::Ask(Ask {
                lock: self.at(1).to_owned(),
                by: self.at(2).to_owned(),
                reason: self.at(3).to_owned(),
                within_ms: self.number("within", 0),
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
    pub fn request(&self, line: &str) -> Request {
        if let Some(write) = self.write(line) {
            return write;
        }
        let rest = line.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
        let watch = PathWatch {
            path: self.positional.get(1).map_or(String::new(), |path| (*path).to_owned()),
            watch: self.option("watch").is_some(),
        };
        match self.at(0) {
            "create1" => Request::Create(self.create()),
            "container" => Request::CreateContainer(self.create()),
            "get" => Request::GetData(watch),
            "exists" => Request::Exists(watch),
            "ls" => Request::GetChildren2(watch),
            "ls1" => Request::GetChildren(watch),
            "getacl" => Request::GetAcl(self.path()),
            "count" => Request::GetAllChildrenNumber(self.path()),
            "ephemerals" => Request::GetEphemerals(self.path()),
            "multiread" => Request::MultiRead(rest.split(';').map(|op| Words::new(op).read_op()).collect()),
            "sync" => Request::Sync(self.path()),
            "ping" => Request::Ping,
            "whoami" => Request::WhoAmI,
            "check" => Request::Check { path: self.path(), version: self.version() },
            "auth" => {
                let auth = Bytes::copy_from_slice(self.at(2).as_bytes());
                Request::Auth { auth_type: 0, scheme: self.at(1).to_owned(), auth }
            }
            "sasl" => Request::Sasl(Some(Bytes::copy_from_slice(self.at(1).as_bytes()))),
            "report" => Request::Report(self.path()),
            "options" => {
                Request::SessionOptions(SessionOptions { disconnect_grace_ms: self.number("grace", 0) })
            }
            "addwatch" => Request::AddWatch { path: self.path(), mode: self.number("mode", 0) },
            "checkwatches" => Request::CheckWatches { path: self.path(), kind: self.number("kind", 3) },
            "removewatches" => Request::RemoveWatches { path: self.path(), kind: self.number("kind", 3) },
            "setwatches" => Request::SetWatches(SetWatches {
                relative_zxid: Zxid(self.number("zxid", 0)),
                data: self.paths("data"),
                exist: self.paths("exist"),
                child: self.paths("child"),
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
                let request = Box::new(Words::new(inner).request(inner));
                Request::Tagged { id: self.number_at(1), acked: self.number_at(2), request }
            }
            other => panic!("unknown verb {other}"),
        }
    }

    /// Parses an operation of a multi.
    pub fn op(&self) -> Op {
        match self.at(0) {
            "create" => Op::Create(self.create()),
            "create2" => Op::Create2(self.create()),
            "container" => Op::CreateContainer(self.create()),
            "ttl" => Op::CreateTtl(self.create(), self.number("ttl_ms", 0)),
            "delete" => Op::Delete { path: self.path(), version: self.version() },
            "set" => Op::SetData(self.set_data()),
            "check" => Op::Check { path: self.path(), version: self.version() },
            other => panic!("{other} is not an operation of multi"),
        }
    }

    fn read_op(&self) -> ReadOp {
        match self.at(0) {
            "get" => ReadOp::GetData(self.path()),
            "ls" => ReadOp::GetChildren(self.path()),
            other => panic!("{other} is not an operation of multiread"),
        }
    }

    fn acquire(&self) -> Acquire {
        Acquire {
            lock: self.at(0).into(),
            prefix: self.at(1).into(),
            data: self.data(),
            acl: Some(Acl::shared_open()),
            mode: self.mode(),
            limit: self.number("limit", 0),
            wait: self.option("try").is_none(),
            owner: match self.option("owner") {
                None => Owner::Unnamed,
                Some("session") => Owner::Session,
                Some(owner) => match owner.strip_prefix("under:") {
                    Some(place) => Owner::under(place),
                    None => Owner::Named(self.number("owner", 0)),
                },
            },
            max_hold_ms: self.number("hold", 0),
            lock_delay_ms: self.number("delay", 0),
            min_hold_ms: self.number("min", 0),
            min_hold_lapses: self.option("lapses").is_some(),
        }
    }

    fn attempt(&self) -> Attempt {
        Attempt { lock: self.at(0).to_owned(), prefix: self.at(1).to_owned() }
    }

    fn mode(&self) -> Mode {
        match self.option("mode").unwrap_or("x") {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            _ => Mode::Permits(self.number("mode", 0)),
        }
    }

    /// Parses a claim, `PATH TOKEN`, from the argument number `at` on.
    pub fn claim(&self, at: usize) -> Claim {
        Claim { path: self.at(at).into(), token: FencingToken(self.number_at(at + 1)) }
    }
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
