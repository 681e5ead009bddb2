//! The words of a story line.
//!
//! A line is a verb, its arguments, and options `key=value`, separated by blanks:
//! `as a create /q/n- data=x mode=es acl=rw:digest:u:h,r:world:anyone`. `data=` is empty, no `data` is null.
//! Modes: p, e, s, es, c, ttl, ttls, or `flags=N`. Permissions: c d r w a, or `all`. `acl=null`, `acl=empty`.

use std::sync::Arc;

use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{CreateMode, Version};
use rowlock_state::command::Command;
use rowlock_stories::Words;

/// Reads a command of a client, if the line is one.
pub fn command(words: &Words<'_>, line: &str) -> Option<Command> {
    Some(match words.at(0) {
        "create" => Command::Client(match ttl_ms(words) {
            None => Request::Create2(create(words)),
            Some(ttl_ms) => Request::CreateTtl(create(words), ttl_ms),
        }),
        "delete" => Command::Client(Request::Delete { path: path(words), version: version(words) }),
        "set" => Command::Client(Request::SetData(set_data(words))),
        "setacl" => {
            let acl = acl(words.option("acl").expect("acl=")).map(Arc::from);
            Command::Client(Request::SetAcl(SetAcl { path: path(words), acl, version: version(words) }))
        }
        "multi" => {
            let ops = line.trim_start().strip_prefix("multi").unwrap();
            let ops = ops.split(';').filter(|text| !text.trim().is_empty());
            Command::Client(Request::Multi(ops.map(|text| op(&Words::new(text))).collect()))
        }
        "close" => Command::Client(Request::CloseSession),
        _ => return crate::stories::locks::command(words, line),
    })
}

/// Reads an operation of a multi.
pub fn op(words: &Words<'_>) -> Op {
    match words.at(0) {
        "create" => Op::Create(create(words)),
        "create2" => Op::Create2(create(words)),
        "container" => Op::CreateContainer(create(words)),
        "ttl" => Op::CreateTtl(create(words), ttl_ms(words).unwrap()),
        "delete" => Op::Delete { path: path(words), version: version(words) },
        "set" => Op::SetData(set_data(words)),
        "check" => Op::Check { path: path(words), version: version(words) },
        other => panic!("{other} is not an operation of multi"),
    }
}

fn data(words: &Words<'_>) -> Option<bytes::Bytes> {
    words.option("data").map(|data| bytes::Bytes::copy_from_slice(data.as_bytes()))
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

fn ttl_ms(words: &Words<'_>) -> Option<i64> {
    words.option("ttl_ms").map(|ttl| ttl.parse().unwrap())
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
