//! Facts of clients under rules of locks, after `cN`: `proves IDENTITY...`, `answered ZXID done|ERROR
//! [RIGHT LOCK]`, `sees ZXID PATH`, `noticed PATH`, `listed ZXID LOCK`. The log's fact is `rules ZXID RULE,
//! RULE...`.

use rowlock_proto::{Right, SessionId, Zxid};
use rowlock_stories::{Words, parse};
use serde_json::json;

use super::super::Fact;
use super::super::access::{Access, Need};
use super::super::client::ClientFact;
use super::{code, named};

pub(super) fn rules(text: &str) -> Option<Fact> {
    let (zxid, rules) = text.strip_prefix("rules ")?.split_once(' ')?;
    Some(Fact::Rules { zxid: Zxid(parse(zxid)), text: rules.replace(", ", "\n") })
}

pub(super) fn fact(words: &Words<'_>, session: SessionId) -> Option<ClientFact> {
    let zxid = || Zxid(words.parse(1));
    let path = |at| words.at(at).to_owned();
    Some(ClientFact::Access(match words.at(0) {
        "proves" => {
            let who = words.from(1).iter().map(|who| (*who).to_owned()).collect();
            Access::Proves { session, who }
        }
        "answered" => {
            let need = |right| Need { lock: path(4), right: named(&Right::ALL, right) };
            let needs = words.find(3).map(need).into_iter().collect();
            let result = if words.at(2) == "done" { Ok(()) } else { Err(code(words.at(2))) };
            Access::Answered { session, since: zxid(), zxid: zxid(), needs, result }
        }
        "sees" => Access::Shown { session, zxid: zxid(), path: path(2) },
        "noticed" => Access::Noticed { session, place: path(1) },
        "listed" => {
            let locks = json!([{ "lock": words.at(2), "holders": 1, "waiters": 0 }]);
            let list = json!({ "zxid": zxid().0, "time_ms": 0, "locks": locks, "more": false });
            Access::Listed { session, locks: serde_json::from_value(list).expect("locks") }
        }
        _ => return None,
    }))
}
