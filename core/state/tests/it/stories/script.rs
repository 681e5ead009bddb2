//! The words of a story line.
//!
//! A line is a verb, its arguments, and options `key=value`, separated by blanks:
//! `as a create /q/n- data=x mode=es acl=rw:digest:u:h,r:world:anyone`. `data=` is empty, no `data` is null.
//! Modes: p, e, s, es, c, ttl, ttls, or `flags=N`. Permissions: c d r w a, or `all`. `acl=null`, `acl=empty`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{CreateMode, Version};
use rowlock_state::command::Command;

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
        let options = options.into_iter().map(|word| word.split_once('=').unwrap()).collect();
        Words { positional, options }
    }

    /// The argument number `at`; the verb is number 0. `''` stands for the empty string.
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

    fn data(&self) -> Option<bytes::Bytes> {
        self.option("data").map(|data| bytes::Bytes::copy_from_slice(data.as_bytes()))
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

    fn ttl_ms(&self) -> Option<i64> {
        self.option("ttl_ms").map(|ttl| ttl.parse().unwrap())
    }

    pub fn command(&self, line: &str) -> Option<Command> {
        Some(match self.at(0) {
            "create" => Command::Client(match self.ttl_ms() {
                None => Request::Create2(self.create()),
                Some(ttl_ms) => Request::CreateTtl(self.create(), ttl_ms),
            }),
            "delete" => Command::Client(Request::Delete { path: self.path(), version: self.version() }),
            "set" => Command::Client(Request::SetData(self.set_data())),
            "setacl" => {
                let acl = acl(self.option("acl").expect("acl=")).map(Arc::from);
                Command::Client(Request::SetAcl(SetAcl { path: self.path(), acl, version: self.version() }))
            }
            "multi" => {
                let ops = line.trim_start().strip_prefix("multi").unwrap();
                let ops = ops.split(';').filter(|op| !op.trim().is_empty());
                Command::Client(Request::Multi(ops.map(|op| Words::new(op).op()).collect()))
            }
            "close" => Command::Client(Request::CloseSession),
            _ => return crate::stories::locks::command(self, line),
        })
    }

    pub fn op(&self) -> Op {
        match self.at(0) {
            "create" => Op::Create(self.create()),
            "create2" => Op::Create2(self.create()),
            "container" => Op::CreateContainer(self.create()),
            "ttl" => Op::CreateTtl(self.create(), self.ttl_ms().unwrap()),
            "delete" => Op::Delete { path: self.path(), version: self.version() },
            "set" => Op::SetData(self.set_data()),
            "check" => Op::Check { path: self.path(), version: self.version() },
            other => panic!("{other} is not an operation of multi"),
        }
    }
}

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
    let (letters, who) = text.split_once(':').unwrap();
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
