//! The words of stories about locks, and how place states and queues are written down.
//!
//! `as NAME acquire LOCK PREFIX [mode=x|s|N] [limit=N] [try=1] [owner=session|N|under:PLACE] [hold=MS]
//! [delay=MS] [min=MS] [lapses=1] [data=]`, more of them behind `;`; `release PATH TOKEN`, `verify PATH
//! TOKEN` and `abandon LOCK PREFIX` likewise; `convert PATH TOKEN PREFIX mode=`; `force PATH TOKEN`; `ask
//! LOCK BY REASON [within=MS]`; `rules RULE;RULE`, `rerules RULE;RULE`; `once ID ACKED COMMAND` (as the
//! client sends it again after a lost reply).

use std::fmt::Write as _;

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Mode, Owner, Party, QueuePosition};
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::{FencingToken, Version, Zxid};
use rowlock_state::command::Command;
use rowlock_state::outcome::{LockEvent, LockEventKind, PositionEnd};
use rowlock_state::rules::RULES_PATH;
use rowlock_state::{ContenderView, Machine};

use crate::stories::script::Words;

/// A command about locks, if the line is one.
pub fn command(words: &Words<'_>, line: &str) -> Option<Command> {
    let rest = line.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
    let parts = || rest.split(';').map(Words::new);
    Some(match words.at(0) {
        "acquire" => Command::Client(Request::Acquire(parts().map(|part| acquire(&part)).collect())),
        "release" => Command::Client(Request::Release(parts().map(|part| claim(&part, 0)).collect())),
        "verify" => Command::Client(Request::Verify(parts().map(|part| claim(&part, 0)).collect())),
        "abandon" => Command::Client(Request::Abandon(
            parts()
                .map(|part| Attempt { lock: part.at(0).to_owned(), prefix: part.at(1).to_owned() })
                .collect(),
        )),
        "convert" => Command::Client(Request::Convert {
            claim: claim(words, 1),
            mode: mode(words),
            prefix: words.at(3).to_owned(),
        }),
        "force" => Command::Client(Request::ForceRelease(claim(words, 1))),
        "fenced" => {
            let (_, op) = rest.split_once(" : ").unwrap();
            Command::Fenced { claim: claim(words, 1), change: Words::new(op).op() }
        }
        "ask" => Command::Client(Request::Ask(Ask {
            lock: words.at(1).to_owned(),
            by: words.at(2).to_owned(),
            reason: words.at(3).to_owned(),
            within_ms: words.number("within", 0),
        })),
        "rules" => {
            let (path, data, acl) = (RULES_PATH.to_owned(), Some(rules(rest)), Some(Acl::shared_open()));
            Command::Client(Request::Create2(Create { path, data, acl, flags: 0 }))
        }
        "rerules" => {
            let (path, data) = (RULES_PATH.to_owned(), Some(rules(rest)));
            Command::Client(Request::SetData(SetData { path, data, version: Version::ANY }))
        }
        "once" => {
            let (id, rest) = rest.split_once(' ').unwrap();
            let (acked, rest) = rest.split_once(' ').unwrap();
            let command = Box::new(Words::new(rest).command(rest).expect("a command"));
            Command::Tagged { id: id.parse().unwrap(), acked: acked.parse().unwrap(), command }
        }
        _ => return None,
    })
}

/// The text of rules, one a line.
fn rules(words: &str) -> Bytes {
    words.replace(';', "\n").into()
}

fn acquire(words: &Words<'_>) -> Acquire {
    Acquire {
        lock: words.at(0).into(),
        prefix: words.at(1).into(),
        data: words.option("data").map(|data| Bytes::copy_from_slice(data.as_bytes())),
        acl: Some(Acl::shared_open()),
        mode: mode(words),
        limit: words.number("limit", 0),
        wait: words.option("try").is_none(),
        owner: match words.option("owner") {
            None => Owner::Unnamed,
            Some("session") => Owner::Session,
            Some(under) if under.starts_with("under:") => Owner::under(&under["under:".len()..]),
            Some(number) => Owner::Named(number.parse().unwrap()),
        },
        max_hold_ms: words.number("hold", 0),
        lock_delay_ms: words.number("delay", 0),
        min_hold_ms: words.number("min", 0),
        min_hold_lapses: words.option("lapses").is_some(),
    }
}

fn mode(words: &Words<'_>) -> Mode {
    match words.option("mode").unwrap_or("x") {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        permits => Mode::Permits(permits.parse().unwrap()),
    }
}

fn claim(words: &Words<'_>, at: usize) -> Claim {
    Claim { path: words.at(at).into(), token: FencingToken(words.at(at + 1).parse().unwrap()) }
}

pub fn position(position: &QueuePosition) -> String {
    match position {
        QueuePosition::Held(Claim { path, token }) => format!("held {path} token {token}"),
        QueuePosition::Waiting { claim: Claim { path, token }, ahead, holder } => {
            format!("waiting {path} token {token} ahead {ahead} {}", holder_text(holder))
        }
        QueuePosition::Busy { ahead, holder } => format!("busy ahead {ahead} {}", holder_text(holder)),
        QueuePosition::Deadlock(circle) => {
            format!("deadlock {}", circle.iter().map(party).collect::<Vec<_>>().join(" -> "))
        }
        QueuePosition::LimitIs(limit) => format!("limit is {limit}"),
        QueuePosition::Absent => "absent".to_owned(),
    }
}

fn holder_text(holder: &Option<Party>) -> String {
    holder.as_ref().map_or("holder none".to_owned(), |holder| format!("holder {}", party(holder)))
}

fn party(Party { path, session, token, label, since_ms }: &Party) -> String {
    let label = String::from_utf8_lossy(label);
    format!("{path} of {session} token {token} label {label:?} since {since_ms}")
}

pub fn event(event: &LockEvent<&str>, zxid: Zxid) -> String {
    let LockEvent { path, token, session, mode, acquired, kind, label, .. } = event;
    let what = match kind {
        LockEventKind::Requested { ahead } => format!("requested {mode:?} ahead {ahead}"),
        LockEventKind::Granted { waited_ms } => format!("granted after {waited_ms}"),
        LockEventKind::Converted => format!("converted to {mode:?}"),
        LockEventKind::Asked { question } => format!("asked {question:?}"),
        LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
            let PositionEnd { reason, waited_ms, held_ms, by } = end;
            let by = by.map_or_else(String::new, |by| format!(" by {by}"));
            format!("{} {reason:?}{by} held {held_ms:?} waited {waited_ms}", kind.name())
        }
    };
    let pushed = if *acquired { "" } else { " (plain)" };
    format!("  lock {path} token {token} of {session}{pushed} {label:?}: {what} at {}\n", zxid.0)
}

/// The lock at `path` with everybody in its queue.
pub fn queue(machine: &Machine, path: &str) -> String {
    let Some(lock) = machine.lock_queue(path) else { return "none".to_owned() };
    let mut out = format!("limit {:?} delayed until {:?}\n", lock.limit(), lock.delayed_until_ms());
    let mut put = |role: &str, it: ContenderView| {
        let ContenderView {
            path,
            token,
            session,
            mode,
            owner,
            requested_ms,
            granted_ms,
            revoke_at_ms,
            asked,
            ..
        } = it;
        let asked = asked.map_or(String::new(), |asked| format!(" {asked:?}"));
        writeln!(
            out,
            "{role} {path} token {token} of {session} {mode:?} {owner:?} requested {requested_ms} granted \
             {granted_ms:?} revoke {revoke_at_ms:?}{asked}"
        )
        .unwrap();
    };
    lock.holders().for_each(|it| put("holder", it));
    lock.waiters().for_each(|it| put("waiter", it));
    out
}
