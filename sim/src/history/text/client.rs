//! Facts of clients, after `cN`. The session has the client's number without `session=`, the lock is 0
//! without `lock=`, the mode is `x` without a word.
//!
//! - calls ([`super::call`]): `invokes NUMBER CALL`, `returns NUMBER ANSWER`; both at once: `call NUMBER
//!   CALL -> ANSWER` (two facts)
//! - sessions: `session [timeout=] [grace=]`, `plain`, `lease`, `alive MS`, `ended-session SESSION`, `ends`
//! - connections: `connects seen|unseen`, `connected`, `disconnects`, `told-moved`
//! - watches: `event WATCH KIND PATH ZXID`; persistent: `watches PATH [recursive] since=`, `unwatches PATH
//!   [recursive]`, `told KIND PATH ZXID`, `shown ZXID`, `cut`, `rearmed ZXID`
//! - locks: `holds TOKEN [MODE]`, `lets-go TOKEN`, `asks [within=]`, `heard TOKEN ASKED`, `gives-up TOKEN`,
//!   `wrote TOKEN plain|accepted|refused`
//! - service: `waits`, `served`, `large KIND done|unanswered|ERROR`
//! - streams of lock events: `stream [after=] [of=PATH]`, `hears ZXID KIND`, `hears FROM gap UPTO`,
//!   `hears-upto ZXID`, `stream-refused`, `stream-ends`; the history: `pages`, `page EVENT, EVENT...`
//! - reports: `queue ZXID HOLDER... | WAITER...` (each TOKEN:SINCE), `locks ZXID [HOLDERS:WAITERS]` (lock
//!   /a), `sessions ZXID SESSION:HELD:WAITING... [more=yes]`

use rowlock_proto::{EventType, FencingToken, SessionId, Zxid};
use rowlock_stories::{Words, parse};
use serde_json::{Value, json};

use super::super::client::{CallId, ClientFact, Connect, Events, Follow, Large, Store, WatchId};
use super::super::{Lock, Millis};
use super::call::{answer, call};
use super::log::entry;
use super::{access, code, mode, named, numbers};

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
    known.or_else(events).or_else(|| access::fact(words, session))
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
                "position": position, "path": format!("/a/{}", pair[0]), "session": "0x7", "token": pair[0],
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
