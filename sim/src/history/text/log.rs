//! Facts about the log and the world. Options in brackets have defaults: lock 0, the session with the
//! number of the token, released, time 0 of the log's clock, timeout 1000.
//!
//! - sessions: `opened SESSION [timeout=]`, `attached SESSION ATTACHMENT [timeout=]`, `ended SESSION
//!   closed|expired|ended`
//! - locks (MODE: `x`, `s` or permits): `queued TOKEN [MODE] [session=]`, `granted TOKEN [session=] [at=]`,
//!   `left TOKEN [WHY]`, `converted TOKEN MODE`, `questioned TOKEN at=`, all with `[lock=]`
//! - `event ZXID KIND [token=] [of=PATH] [label=] [reason=] [by=]`: an entry of event streams
//! - `logged SESSION ZXID CALL -> ANSWER`, `znode ZXID PATH created|data|child DATA STAT`, `znode ZXID PATH
//!   deleted`
//! - `disagreed PROMISE`: the oracle finds another value; `version NUMBER [held]`
//! - `committed ZXID`, `life FLOOR [SESSION...]`: a new cluster that begins with these open sessions
//! - `replica NODE INDEX DIGEST apply|install`
//! - the world: `settled`, `healed`, `passed`, `connected none`, `connected [nodes=1,2,3] [clients=1] [pace=]
//!   [slowdown=] [settled=no] [upgraded=yes] [changes-after=MS]`, `probed NODE began= [without=SERVICE]`,
//!   `operated hold|finalize`

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::report::{HistoryEntry, HistoryEvent};
use rowlock_proto::{FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{EndReason, SessionEnd};
use rowlock_stories::{Words, parse};
use rowlock_world::time::Nanos;
use serde_json::json;

use super::super::client::{ClientId, Logged, Znode, ZnodeChange, name_hash};
use super::super::node::Position;
use super::super::{Connected, Fact, Index, Lock, Millis, NewLife, Origin, Served};
use super::client::{answer, call, data, rules, stat};
use super::{millis, mode, named, numbers};

pub(super) fn fact(text: &str, at: Nanos) -> Option<Fact> {
    let words = &Words::new(text);
    let known = session(words).or_else(|| lock(words)).or_else(|| change(words, text));
    known.or_else(|| world(words, at)).or_else(|| rules(text))
}

fn session(words: &Words<'_>) -> Option<Fact> {
    let session = || SessionId(words.parse(1));
    let (timeout_ms, at) = (words.number("timeout", 1_000), Millis(words.number("at", 0)));
    Some(match words.at(0) {
        "opened" => Fact::SessionOpened { session: session(), attachment: Attachment(1), timeout_ms, at },
        "attached" => {
            let attachment = Attachment(words.parse(2));
            Fact::SessionAttached { session: session(), attachment, timeout_ms, at }
        }
        "ended" => {
            let ends = [SessionEnd::Closed, SessionEnd::Expired, SessionEnd::Ended];
            Fact::SessionEnded { session: session(), end: named(&ends, words.at(2)), at }
        }
        _ => return None,
    })
}

fn lock(words: &Words<'_>) -> Option<Fact> {
    let (lock, at) = (Lock(words.number("lock", 0)), Millis(words.number("at", 0)));
    let token = || FencingToken(words.parse(1));
    let session = || SessionId(words.number("session", token().0));
    Some(match words.at(0) {
        "queued" => Fact::Queued { lock, token: token(), session: session(), mode: mode(words.find(2)) },
        "granted" => {
            Fact::Entitled { lock, token: token(), session: session(), zxid: Zxid(words.parse(1)), at }
        }
        "left" => {
            use EndReason::{
                Deleted, Forced, Released, Revoked, SessionClosed, SessionEnded, SessionExpired,
            };
            let reasons = [Released, SessionClosed, SessionExpired, Deleted, Forced, Revoked, SessionEnded];
            let why = words.find(2).map_or(Released, |word| named(&reasons, word));
            Fact::Left { lock, token: token(), why }
        }
        "converted" => Fact::Converted { lock, token: token(), mode: mode(words.find(2)) },
        "questioned" => Fact::Questioned { lock, token: token(), asked: at },
        _ => return None,
    })
}

fn change(words: &Words<'_>, text: &str) -> Option<Fact> {
    Some(match words.at(0) {
        "event" => Fact::LockEvent(Arc::new(entry(words, 1))),
        "logged" => {
            let (op, result) = text.splitn(4, ' ').nth(3)?.split_once(" -> ")?;
            let (zxid, session) = (Zxid(words.parse(2)), SessionId(words.parse(1)));
            Fact::Logged(Arc::new(Logged { zxid, session, op: call(op)?, result: answer(result)? }))
        }
        "znode" => {
            let change = match words.at(3) {
                "created" => ZnodeChange::Created,
                "data" => ZnodeChange::Data,
                "deleted" => ZnodeChange::Deleted,
                "child" => ZnodeChange::Child { name_hash: name_hash("a") },
                _ => return None,
            };
            let now = words.find(4).map(|text| (data(text), stat(words.at(5))));
            let (zxid, path) = (Zxid(words.parse(1)), words.at(2).to_owned());
            Fact::Znode(Arc::new(Znode { zxid, path, change, now }))
        }
        "disagreed" => {
            let promise = if words.at(1) == "fifo" { "fifo" } else { "the-oracle-agrees" };
            Fact::Disagreed { promise, what: "a difference".to_owned() }
        }
        "version" => Fact::Version { number: words.parse(1), is_held: words.find(2).is_some() },
        "committed" => Fact::Committed { zxid: Zxid(words.parse(1)) },
        "life" => {
            let beginning = Position { term: 0, leader: NodeId(0), index: Index(1) };
            let opened = |session: &&str| super::fact(&format!("opened {session}"));
            let begins_with = words.from(2).iter().map(opened).collect();
            let (floor, wild) = (Zxid(words.parse(1)), BTreeSet::new());
            Fact::NewLife(Arc::new(NewLife { beginning, floor, wild, begins_with }))
        }
        _ => return None,
    })
}

/// Reads an entry of event streams: `ZXID KIND` with options, or `FROM gap UPTO [reason=]`.
pub(super) fn entry(words: &Words<'_>, first: usize) -> HistoryEntry {
    let (zxid, kind): (i64, _) = (words.parse(first), words.at(first + 1));
    let mut entry = if kind == "gap" {
        let upto: i64 = words.parse(first + 2);
        json!({
            "time_ms": 0, "zxid": upto, "event": "gap", "from_zxid": zxid, "missing": null,
            "reason": words.option("reason").unwrap_or("lost"),
        })
    } else {
        let (token, lock) = (words.number("token", zxid), words.option("of").unwrap_or("/a"));
        let label = words.option("label").map_or(String::new(), |id| json!({ "ID": id }).to_string());
        json!({
            "time_ms": zxid * 10, "zxid": zxid, "event": kind, "ahead": 0, "waited_ms": 0, "held_ms": 0,
            "reason": words.option("reason").unwrap_or("released"), "lock": lock, "path": format!("{lock}/{token}"),
            "token": token.to_string(),
            "session": "0x7", "label": label, "address": null, "mode": "exclusive", "permits": null,
            "acquired": true,
        })
    };
    if let Some(by) = words.option("by") {
        entry["by"] = json!(by);
    }
    let entry: HistoryEntry = serde_json::from_value(entry).unwrap_or_else(|error| panic!("{kind}: {error}"));
    assert!(!matches!(entry.event, HistoryEvent::Other {}), "{kind}: no event of this version");
    entry
}

fn world(words: &Words<'_>, at: Nanos) -> Option<Fact> {
    let nodes = |word: &str| numbers(word, ',').into_iter().map(NodeId).collect();
    Some(match words.at(0) {
        "replica" => Fact::Replica {
            node: NodeId(words.parse(1)),
            index: Index(words.parse(2)),
            digest: words.parse(3),
            origin: named(&[Origin::Apply, Origin::Install], words.at(4)),
        },
        "settled" => Fact::Settled,
        "healed" => Fact::Healed { at },
        "passed" => Fact::Passed { at },
        "connected" if words.find(1) == Some("none") => Fact::Connected { at, now: None },
        "connected" => {
            let (may_lead, serving) = (nodes(words.option("nodes")?), nodes(words.option("nodes")?));
            let here = Served { changed: at, disturbed: at, by_all: true, by_former: true };
            let clients = numbers(words.option("clients")?, ',').into_iter();
            let served = clients.map(|client| (ClientId(client), here)).collect();
            let (disk_pace, slowdown) = (words.number("pace", 1), words.number("slowdown", 1));
            let is_settled = words.option("settled").is_none();
            let (changed, is_upgraded) = (at, words.option("upgraded").is_some());
            let after = words.option("changes-after").map(parse);
            let changes_after = after.map(Duration::from_millis);
            let now = Connected {
                may_lead,
                serving,
                served,
                changed,
                is_settled,
                changes_after,
                is_upgraded,
                disk_pace,
                slowdown,
            };
            Fact::Connected { at, now: Some(Arc::new(now)) }
        }
        "operated" => Fact::Operated { at, holds: words.at(1) == "hold" },
        "probed" => {
            let outcome = words.option("without").map_or(Ok(()), |service| Err(format!("has no {service}")));
            Fact::Probed { at, began: millis(words.option("began")?), node: NodeId(words.parse(1)), outcome }
        }
        _ => return None,
    })
}
