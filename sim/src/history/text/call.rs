//! Calls and answers.
//!
//! - calls: `create PATH [DATA] [mode=ephemeral|sequential]` (DATA is `new` without a word), `set PATH DATA
//!   [version=]`, `delete PATH`, `get PATH [synced] [watch=]`, `exists PATH [synced]`, `sync`, `acquire
//!   LOCK [MODE]`, `release LOCK TOKEN`, `held LOCK...`, `force LOCK [TOKEN]`, `verify LOCK TOKEN`, `multi
//!   CALL | CALL`
//! - answers: `created PATH STAT`, `set STAT`, `deleted`, `data DATA STAT`, `absent`, `synced`, `acquired
//!   TOKEN`, `held TOKEN...`, `taken LABEL`, `released yes|no`, `verified yes|no`, `multi ANSWER | ANSWER`
//! - no answer: `refused ERROR`, `refused ERROR at=OPERATION` (of a multi), `undone`, `unknown`
//!
//! STAT: czxid, mzxid and version, as `2/4/1`.

use bytes::Bytes;
use rowlock_proto::{CreateMode, FencingToken, Stat, Version, Zxid};
use rowlock_stories::{Words, parse};

use super::super::Lock;
use super::super::client::{Answer, Failure, Op, ReadKind, WatchId};
use super::{code, mode, numbers};

pub(super) fn call(text: &str) -> Option<Op> {
    let words = &Words::new(text);
    let path = || words.at(1).to_owned();
    let version = Version(words.number("version", Version::ANY.0));
    let lock = || Lock(words.parse(1));
    let read = |kind| {
        let (watch, synced) = (words.option("watch").map(parse).map(WatchId), words.find(2).is_some());
        Op::Read { kind, path: path(), watch, synced }
    };
    Some(match words.at(0) {
        "create" => {
            let mode = match words.option("mode") {
                None => CreateMode::Persistent,
                Some("ephemeral") => CreateMode::Ephemeral,
                Some("sequential") => CreateMode::PersistentSequential,
                Some(_) => return None,
            };
            Op::Create { path: path(), data: data(words.find(2).unwrap_or("new")), mode }
        }
        "set" => Op::Set { path: path(), data: data(words.at(2)), version },
        "delete" => Op::Delete { path: path(), version },
        "get" => read(ReadKind::Data),
        "exists" => read(ReadKind::Exists),
        "sync" => Op::Sync,
        "acquire" => Op::Acquire { lock: lock(), mode: mode(words.find(2)) },
        "release" => Op::Release { lock: lock(), token: FencingToken(words.parse(2)) },
        "held" => Op::Held { locks: words.from(1).iter().map(|word| Lock(parse(word))).collect() },
        "force" => {
            let token = words.find(2).map(|token| FencingToken(parse(token)));
            Op::Force { lock: lock(), token }
        }
        "verify" => Op::Verify { lock: lock(), token: FencingToken(words.parse(2)) },
        "multi" => Op::Multi(parts(text).map(call).collect::<Option<_>>()?),
        _ => return None,
    })
}

pub(super) fn answer(text: &str) -> Option<Result<Answer, Failure>> {
    let words = &Words::new(text);
    let token = |word: &&str| FencingToken(parse(word));
    Some(Ok(match words.at(0) {
        "created" => Answer::Created { path: words.at(1).to_owned(), stat: stat(words.at(2)) },
        "set" => Answer::Set(stat(words.at(1))),
        "deleted" => Answer::Deleted,
        "data" => Answer::Data(data(words.at(1)), stat(words.at(2))),
        "absent" => Answer::Exists(None),
        "synced" => Answer::Synced,
        "acquired" => Answer::Acquired(token(&words.at(1))),
        "held" => Answer::Held(words.from(1).iter().map(token).collect()),
        "taken" => Answer::Taken(words.at(1).to_owned()),
        "released" => Answer::Released(words.at(1) == "yes"),
        "verified" => Answer::Verified(words.at(1) == "yes"),
        "multi" => Answer::Multi(parts(text).map(|part| answer(part)?.ok()).collect::<Option<_>>()?),
        "refused" => {
            let code = code(words.at(1));
            let at = words.option("at").map(parse);
            return Some(Err(at.map_or(Failure::Refused(code), |at| Failure::RefusedAt(at, code))));
        }
        "undone" => return Some(Err(Failure::NotDone)),
        "unknown" => return Some(Err(Failure::Unknown)),
        _ => return None,
    }))
}

fn parts(multi: &str) -> impl Iterator<Item = &str> {
    multi.trim().trim_start_matches("multi").split('|')
}

pub(super) fn data(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

pub(super) fn stat(word: &str) -> Stat {
    let numbers: Vec<i64> = numbers(word, '/');
    let version = Version(numbers[2] as i32);
    Stat { czxid: Zxid(numbers[0]), mzxid: Zxid(numbers[1]), version, ..Stat::default() }
}
