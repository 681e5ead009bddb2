//! Facts of clients, after `cN`. The session has the client's number without `session=`, the lock is 0
//! without `lock=`, the mode is `x` without a word.
//!
//! - calls: `invokes NUMBER CALL`, `returns NUMBER ANSWER`; both at once: `call NUMBER
//!   CALL -> ANSWER` (two facts)
//! - sessions: `session [timeout=] [grace=]`, `plain`, `lease`, `alive MS`, `ended-session SESSION`, `ends`
//! - connections: `connects seen|unseen`, `connected`, `disconnects`, `told-moved`; of our client
//!   `link up|down|closing`
//! - watches: `event WATCH KIND PATH ZXID`; persistent: `watches PATH [recursive] since=`, `unwatches PATH
//!   [recursive]`, `told KIND PATH ZXID`, `shown ZXID`, `cut`, `rearmed ZXID`
//! - locks: `holds TOKEN [MODE]`, `lets-go TOKEN`, `asks [within=]`, `heard TOKEN ASKED`, `gives-up TOKEN`,
//!   `wrote TOKEN plain|accepted|refused`
//! - service: `waits`, `served`, `large KIND done|unanswered|ERROR`
//! - streams of lock events: `stream [after=] [of=PATH]`, `hears ZXID KIND`, `hears FROM gap UPTO`,
//!   `hears-upto ZXID`, `stream-refused`, `stream-ends`; the history: `pages`, `page EVENT, EVENT...`
//! - reports: `queue ZXID HOLDER... | WAITER...` (each TOKEN:SINCE), `locks ZXID [HOLDERS:WAITERS]` (lock
//!   /a), `sessions ZXID SESSION:HELD:WAITING... [more=yes]`
//! - under rules and ACLs: `proves IDENTITY...`, `answered ZXID done|ERROR [RIGHT LOCK | PERMS ZNODE]`, `sees
//!   ZXID PATH`, `noticed PATH`, `listed ZXID LOCK`. Facts of the log are `rules ZXID RULE, RULE...` and `acl
//!   ZXID ZNODE gone | PERMS/IDENTITY...`
//!
//! - calls: `create PATH [DATA] [mode=ephemeral|sequential]` (DATA is `new` without a word), `set PATH DATA
//!   [version=]`, `delete PATH`, `get PATH [synced] [watch=]`, `exists PATH [synced]`, `sync`, `acquire
//!   LOCK [MODE]`, `release LOCK TOKEN`, `held LOCK...`, `force LOCK [TOKEN]`, `verify LOCK TOKEN`, `multi
//!   CALL | CALL`
//! - answers: `created PATH STAT`, `set STAT`, `deleted`, `data DATA STAT`, `absent`, `synced`, `acquired
//!   TOKEN`, `held TOKEN...`, `waiting POSITION`, `taken LABEL`, `released yes|no`, `verified yes|no`,
//!   `multi ANSWER | ANSWER`
//! - no answer: `refused ERROR`, `refused ERROR at=OPERATION` (of a multi), `undone`, `unknown`
//!
//! STAT: czxid, mzxid and version, as `2/4/1`.

use bytes::Bytes;
use rowlock_proto::{Acl, CreateMode, EventType, FencingToken, Id, Right, SessionId, Stat, Version, Zxid};
use rowlock_stories::{Words, parse};
use serde_json::{Value, json};

use super::super::access::{Access, Bearer, Need};
use super::super::client::{
    Answer, CallId, ClientFact, Connect, Events, Failure, Follow, Large, Link, Op, ReadKind, Store, WatchId,
};
use super::super::{Fact, Lock, Millis};
use super::log::entry;
use super::{code, mode, named, numbers};

const KINDS: [EventType; 4] = [
    EventType::NodeCreated,
    EventType::NodeDeleted,
    EventType::NodeDataChanged,
    EventType::NodeChildrenChanged,
];

pub(super) fn fact(text: &str, client: usize) -> Option<ClientFact> {
    let words = &Words::new(text);
    let session = SessionId(words.number("session", client as i64));
    let of_session = || session_fact(words, session);
    let follow = || Some(ClientFact::Follows { session, what: follow(words)? });
    let events = || Some(ClientFact::Events(events(words, text)?));
    let known = calls(text, session).or_else(of_session).or_else(|| lock(words)).or_else(follow);
    known.or_else(events).or_else(|| access(words, session))
}

fn calls(text: &str, session: SessionId) -> Option<ClientFact> {
    let mut words = text.splitn(3, ' ');
    let (verb, number, rest) = (words.next()?, words.next()?, words.next()?);
    Some(match verb {
        "invokes" => ClientFact::Invoked { call: CallId(parse(number)), session, op: call(rest)?.into() },
        "returns" => ClientFact::Returned { call: CallId(parse(number)), result: answer(rest)? },
        _ => return None,
    })
}

fn session_fact(words: &Words<'_>, session: SessionId) -> Option<ClientFact> {
    let connects = |what| ClientFact::Connects { session, what };
    Some(match words.at(0) {
        "session" => {
            let grace_ms = words.option("grace").map(parse);
            ClientFact::Session { session, timeout_ms: words.number("timeout", 1_000), grace_ms }
        }
        "plain" => ClientFact::Plain { session },
        "lease" => ClientFact::Lease { session },
        "alive" => ClientFact::Alive { session, for_ms: words.parse(1) },
        "ended-session" => ClientFact::HasEnded { session: SessionId(words.parse(1)) },
        "ends" => ClientFact::Ended,
        "connects" => connects(Connect::Begins { has_seen: words.at(1) == "seen" }),
        "connected" => connects(Connect::Done),
        "disconnects" => connects(Connect::Left),
        "told-moved" => connects(Connect::ToldMoved),
        "link" => {
            ClientFact::Link { session, now: named(&[Link::Up, Link::Down, Link::Closing], words.at(1)) }
        }
        "waits" => ClientFact::Waits { request: "write" },
        "served" => ClientFact::Served,
        "large" => {
            let outcome = match words.at(2) {
                "done" => Ok(None),
                "unanswered" => Err(()),
                error => Ok(Some(code(error))),
            };
            ClientFact::Asked { kind: named(&Large::ALL, words.at(1)), outcome }
        }
        _ => return None,
    })
}

fn lock(words: &Words<'_>) -> Option<ClientFact> {
    let lock = Lock(words.number("lock", 0));
    let token = || FencingToken(words.parse(1));
    Some(match words.at(0) {
        "holds" => ClientFact::Holds { lock, token: token(), mode: mode(words.find(2)) },
        "lets-go" => ClientFact::LetGo { lock, token: token() },
        "asks" => ClientFact::Asks { lock, within_ms: words.option("within").map(parse) },
        "heard" => ClientFact::Heard { lock, token: token(), asked: Millis(words.parse(2)) },
        "gives-up" => ClientFact::GaveUp { lock, token: token() },
        "wrote" => {
            let store = match words.at(2) {
                "plain" => Store::Plain,
                "presented" => Store::Presented,
                outcome => Store::Fenced { accepted: outcome == "accepted" },
            };
            ClientFact::Wrote { lock, token: token(), store }
        }
        "event" => ClientFact::Event {
            watch: WatchId(words.parse(1)),
            kind: named(&KINDS, words.at(2)),
            path: words.at(3).to_owned(),
            zxid: Zxid(words.parse(4)),
        },
        _ => return None,
    })
}

fn follow(words: &Words<'_>) -> Option<Follow> {
    let path = || words.at(1).to_owned();
    let is_recursive = words.find(2) == Some("recursive");
    Some(match words.at(0) {
        "watches" => Follow::Added { path: path(), is_recursive, since: Zxid(words.number("since", 0)) },
        "unwatches" => Follow::Removed { path: path(), is_recursive },
        "told" => Follow::Told {
            kind: named(&KINDS, words.at(1)),
            path: words.at(2).to_owned(),
            zxid: Zxid(words.parse(3)),
        },
        "shown" => Follow::Shown { zxid: Zxid(words.parse(1)) },
        "cut" => Follow::Cut,
        "rearmed" => Follow::Rearmed { since: Zxid(words.parse(1)) },
        _ => return None,
    })
}

fn events(words: &Words<'_>, text: &str) -> Option<Events> {
    let scope = words.option("of").map(str::to_owned);
    Some(match words.at(0) {
        "stream" => Events::Begins { scope, after: words.option("after").map(|zxid| Zxid(parse(zxid))) },
        "hears" => Events::Told(Box::new(entry(words, 1))),
        "hears-upto" => Events::UpTo(Zxid(words.parse(1))),
        "stream-refused" => Events::Refused,
        "stream-ends" => Events::Ends,
        "pages" => Events::Pages { scope },
        "page" => {
            let entries = text.trim_start_matches("page").split(',');
            Events::Page(entries.map(|part| entry(&Words::new(part), 0)).collect())
        }
        "queue" => Events::Queue(serde_json::from_value(queue(text)).expect("a queue")),
        "locks" => {
            let locks = words.find(2).map(|counts| {
                let counts: Vec<u64> = numbers(counts, ':');
                json!({ "lock": "/a", "holders": counts[0], "waiters": counts[1] })
            });
            let locks: Vec<Value> = locks.into_iter().collect();
            let zxid: i64 = words.parse(1);
            let report = json!({ "zxid": zxid, "time_ms": 0, "locks": locks, "more": false });
            Events::Locks(serde_json::from_value(report).expect("locks"))
        }
        "sessions" => Events::Sessions(serde_json::from_value(sessions(words)).expect("sessions")),
        _ => return None,
    })
}

fn queue(text: &str) -> Value {
    let (holders, waiters) = text.split_once('|').unwrap_or((text, ""));
    let (holders, waiters) = (Words::new(holders), Words::new(waiters));
    let mut position = 0;
    let mut places = |words: &[&str]| -> Vec<Value> {
        let place = |word: &&str| {
            position += 1;
            let pair: Vec<i64> = numbers(word, ':');
            json!({
                "position": position, "path": format!("/a/{}", pair[0]), "session": "0x7",
                "token": pair[0].to_string(),
                "label": "", "address": null, "mode": "exclusive", "permits": null, "owner": null,
                "acquired": true, "since_ms": pair[1], "held_ms": 0, "waited_ms": 0, "revoke_at_ms": null,
                "waits_for": null,
            })
        };
        words.iter().map(place).collect()
    };
    let (zxid, holders, waiters) =
        (holders.parse::<i64>(1), places(holders.from(2)), places(waiters.from(0)));
    json!({
        "zxid": zxid, "time_ms": 0, "lock": "/a", "limit": null, "delayed_until_ms": null,
        "holder_count": holders.len(), "waiter_count": waiters.len(), "holders": holders,
        "waiters": waiters, "more": false,
    })
}

fn sessions(words: &Words<'_>) -> Value {
    let one = |word: &&str| {
        let numbers: Vec<u64> = numbers(word, ':');
        json!({
            "session": format!("{:#x}", numbers[0]), "timeout_ms": 9, "attachment": 1, "address": null,
            "ephemerals": 0, "locks_held": numbers[1], "locks_waiting": numbers[2],
        })
    };
    let sessions: Vec<Value> = words.from(2).iter().map(one).collect();
    let more = words.option("more").is_some();
    json!({ "zxid": words.parse::<i64>(1), "session_count": 2, "sessions": sessions, "more": more })
}

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
        "waiting" => Answer::Waiting(words.parse(1)),
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

pub(super) fn rules(text: &str) -> Option<Fact> {
    if let Some(acl) = text.strip_prefix("acl ") {
        let words = &Words::new(acl);
        let entry = |who: &&str| {
            let (perms, who) = who.split_once('/').expect("permissions and an identity");
            let (scheme, id) = who.split_once(':').expect("a scheme");
            Acl { perms: parse(perms), id: Id { scheme: scheme.to_owned(), id: id.to_owned() } }
        };
        let acl = (words.at(2) != "gone").then(|| words.from(2).iter().map(entry).collect());
        return Some(Fact::Acl { zxid: Zxid(words.parse(0)), path: words.at(1).to_owned(), acl });
    }
    let (zxid, rules) = text.strip_prefix("rules ")?.split_once(' ')?;
    Some(Fact::Rules { zxid: Zxid(parse(zxid)), text: rules.replace(", ", "\n") })
}

fn access(words: &Words<'_>, session: SessionId) -> Option<ClientFact> {
    let zxid = || Zxid(words.parse(1));
    let path = |at| words.at(at).to_owned();
    Some(ClientFact::Access(match words.at(0) {
        "proves" => {
            let who = words.from(1).iter().map(|who| (*who).to_owned()).collect();
            Access::Proves { session, who }
        }
        "answered" => {
            let need = |right: &str| match right.parse() {
                Ok(any_of) => Need::Perms { path: path(4), any_of },
                Err(_) => Need::Right { lock: path(4), right: named(&Right::ALL, right) },
            };
            let needs = words.find(3).map(need).into_iter().collect();
            let result = if words.at(2) == "done" { Ok(()) } else { Err(code(words.at(2))) };
            Access::Answered { session, since: zxid(), zxid: zxid(), needs, result }
        }
        "sees" => Access::Shown { session, zxid: zxid(), path: path(2) },
        "tries" => {
            let named = |bearer: &Bearer| bearer.name() == words.at(1);
            let bearer = Bearer::ALL.into_iter().find(named).expect("a credential");
            Access::Credential { bearer, role: path(2), status: words.parse(3) }
        }
        "noticed" => Access::Noticed { session, place: path(1) },
        "listed" => {
            let locks = json!([{ "lock": words.at(2), "holders": 1, "waiters": 0 }]);
            let list = json!({ "zxid": zxid().0, "time_ms": 0, "locks": locks, "more": false });
            Access::Listed { session, locks: serde_json::from_value(list).expect("locks") }
        }
        _ => return None,
    }))
}
