//! Lines of stories about locks, and the text of lock events and queues.
//!
//! `fenced PATH TOKEN : OPERATION`; `rules RULE;RULE`, `rerules RULE;RULE`; `once ID ACKED COMMAND` (the
//! client repeats a command after a lost reply).

use std::fmt::Write as _;

use bytes::Bytes;
use rowlock_frames::script;
use rowlock_proto::acl::Acl;
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::{Request, Version, Zxid};
use rowlock_state::command::Command;
use rowlock_state::outcome::{LockEvent, LockEventKind, PositionEnd};
use rowlock_state::rules::RULES_PATH;
use rowlock_state::{ContenderView, Machine};
use rowlock_stories::Words;

/// Returns the command of a client's line. `None`: the line is a read.
pub fn command(words: &Words<'_>, line: &str) -> Option<Command> {
    if let Some(write) = script::write(words, line) {
        return Some(Command::Client(write));
    }
    let rest = line.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
    Some(match words.at(0) {
        "fenced" => {
            let (_, op) = rest.split_once(" : ").unwrap();
            Command::Fenced { claim: script::claim(words, 1), change: script::op(&Words::new(op)) }
        }
        "rules" => {
            let (path, data, acl) = (RULES_PATH.to_owned(), Some(rules(rest)), Some(Acl::shared_open()));
            Command::Client(Request::Create2(Create { path, data, acl, flags: 0 }))
        }
        "rerules" => {
            let (path, data) = (RULES_PATH.to_owned(), Some(rules(rest)));
            Command::Client(Request::SetData(SetData { path, data, version: Version::ANY }))
        }
        "once" => {
            let (_, again) = rest.split_once(' ').and_then(|(_, rest)| rest.split_once(' ')).unwrap();
            let command = Box::new(command(&Words::new(again), again).expect("a command"));
            Command::Tagged { id: words.parse(1), acked: words.parse(2), command }
        }
        _ => return None,
    })
}

/// Returns the text of rules, one a line.
fn rules(words: &str) -> Bytes {
    words.replace(';', "\n").into()
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
