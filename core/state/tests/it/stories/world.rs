//! A machine with named clients, and how its answers are written down.
//!
//! Verbs: `time MS`, `enforce on|off` (hard quotas), `guard on|off` (of locks), `node N`, `may NAME LOCK`,
//! `open NAME [timeout_ms=]`, `attach NAME [password=wrong] [timeout_ms=] [from=]` (the client goes on with
//! the new attachment unless `stay=1`), `auth NAME ID`, `as NAME COMMAND` (also reads; `@N` after the name:
//! with that attachment), `expire NAME [attachment=]`, `reap PATH`, `due MS [since=ZXID]`, `configure TEXT`,
//! `noop`, `raisetokens ABOVE`, and reads without a session: `exists`, `get`, `ls`, `getacl`, `count`,
//! `ephemerals NAME PREFIX`, `quotas`, `counts`, `sessions`, `queue LOCK`, `locksdue MS`, `lockdue LOCK`;
//! commands about locks: `locks.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rowlock_frames::script::id;
use rowlock_frames::text::{self, acl_text, stat};
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::{FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::{Attachment, Batch, Command, Origin, Proposal};
use rowlock_state::outcome::{Applied, Attached, Change, EventContext, EventSink, LockEvent, SessionEnd};
use rowlock_state::quota::Quota;
use rowlock_state::rules::Decision;
use rowlock_state::{Machine, Proof, Question};
use rowlock_stories::Words;

use crate::stories::locks;

#[derive(Clone, Default)]
struct Client {
    session: SessionId,
    attachment: Attachment,
    who: Vec<Id>,
}

#[derive(Default)]
pub struct World {
    pub machine: Machine,
    clients: BTreeMap<String, Client>,
    time_ms: i64,
    enforce_quota: bool,
    guard_locks: bool,
    node: NodeId,
}

impl World {
    /// Runs one line and tells what happened.
    pub fn run(&mut self, line: &str) -> String {
        let words = Words::new(line);
        let number = |at| words.at(at).parse().unwrap();
        match words.at(0) {
            "time" => self.time_ms = number(1),
            "enforce" => self.enforce_quota = words.at(1) == "on",
            "guard" => self.guard_locks = words.at(1) == "on",
            "may" => return self.may(words.at(1), words.at(2)),
            "quotas" => return self.quotas(),
            "node" => self.node = NodeId(words.at(1).parse().unwrap()),
            "auth" => self.client(words.at(1)).who.push(id(words.at(2))),
            "open" => return self.open(&words),
            "attach" => return self.attach(&words),
            "as" => return self.run_as(line),
            "expire" => {
                let client = self.client(words.at(1)).clone();
                let attachment = Attachment(words.number("attachment", client.attachment.0));
                return self.cluster(Command::ExpireSession { session: client.session, attachment });
            }
            "reap" => return self.cluster(Command::Reap { path: words.at(1).to_owned() }),
            "configure" => {
                let config = line.split_once(' ').expect("a text").1.to_owned();
                return self.cluster(Command::Configure { config });
            }
            "noop" => return self.cluster(Command::Noop),
            "raisetokens" => {
                let above = FencingToken(number(1));
                return self.cluster(Command::RaiseTokens { above });
            }
            "due" => {
                let since = Zxid(words.number("since", i64::MAX));
                return self.machine.reap_due(number(1), since).map(|path| format!("{path}\n")).collect();
            }
            "ephemerals" => {
                let session = self.client(words.at(1)).session;
                return self.machine.ephemerals(session, words.at(2)).join("\n");
            }
            "lockdue" => return self.cluster(Command::LockDue { lock: words.at(1).to_owned() }),
            "locksdue" => {
                let due: Vec<_> = self.machine.locks_due(number(1)).collect();
                return format!("next {:?} due {due:?}", self.machine.next_lock_due());
            }
            "queue" => return locks::queue(&self.machine, words.at(1)),
            "counts" => return format!("{:?}", self.machine.counts()),
            "sessions" => return self.sessions(),
            _ => return self.read(&words, &[]),
        }
        "ok".to_owned()
    }

    fn client(&mut self, name: &str) -> &mut Client {
        self.clients.entry(name.to_owned()).or_default()
    }

    fn open(&mut self, words: &Words<'_>) -> String {
        let proof = Proof::of(b"sixteen byte key");
        let command = Command::OpenSession { proof, timeout_ms: words.number("timeout_ms", 4_000) };
        let (applied, told) = self.propose(&Client::default(), command);
        if let Some(Attached { session, attachment, .. }) = applied.attached {
            *self.client(words.at(1)) = Client { session, attachment, who: Vec::new() };
        }
        told
    }

    fn attach(&mut self, words: &Words<'_>) -> String {
        let session = self.client(words.at(1)).session;
        let proof = Proof::of(words.option("password").unwrap_or("sixteen byte key").as_bytes());
        let timeout_ms = words.number("timeout_ms", 4_000);
        let from = words.option("from").map(|_| Attachment(words.number("from", 0)));
        let command = Command::Reattach { from, session, proof, timeout_ms };
        let (applied, told) = self.propose(&Client::default(), command);
        if let (Some(Attached { attachment, .. }), None) = (applied.attached, words.option("stay")) {
            self.client(words.at(1)).attachment = attachment;
        }
        told
    }

    fn run_as(&mut self, line: &str) -> String {
        let (_, rest) = line.split_once(' ').unwrap();
        let (name, rest) = rest.split_once(' ').unwrap();
        let (name, attachment) = match name.split_once('@') {
            Some((name, attachment)) => (name, Some(Attachment(attachment.parse().unwrap()))),
            None => (name, None),
        };
        let mut client = self.client(name).clone();
        client.attachment = attachment.unwrap_or(client.attachment);
        let words = Words::new(rest);
        match locks::command(&words, rest) {
            Some(command) => self.propose(&client, command).1,
            None => self.read(&words, &client.who),
        }
    }

    fn cluster(&mut self, command: Command) -> String {
        self.propose(&Client::default(), command).1
    }

    /// Through the log format, as in production.
    fn propose(&mut self, client: &Client, command: Command) -> (Applied, String) {
        let proposal = Proposal {
            origin: Origin { node: self.node, incarnation: 1, request: 1 },
            session: client.session,
            attachment: client.attachment,
            identities: client.who.as_slice().into(),
            command,
        };
        let (time_ms, enforce_quota, guard_locks) = (self.time_ms, self.enforce_quota, self.guard_locks);
        let proposals = vec![proposal];
        let batch = Batch { time_ms, enforce_quota, guard_locks, proposals, ..Batch::default() };
        let batch = Batch::decode(&batch.encode()).unwrap();
        let mut told = Told::default();
        let applied = self.machine.apply_stamped(batch.stamp(), &batch.proposals[0], &mut told);
        let answer = format!("zxid {}: {}\n{}", applied.zxid.0, answer(&applied), told.0);
        (applied, answer)
    }

    fn may(&mut self, name: &str, lock: &str) -> String {
        let who = self.client(name).who.clone();
        let Decision { rights, pattern } = self.machine.rules().decide(lock, &who, self.guard_locks);
        format!("{rights} by {}", pattern.map_or("no rule".to_owned(), |pattern| pattern.to_string()))
    }

    fn quotas(&self) -> String {
        let line = |Quota { path, limits, usage }: Quota| format!("{path} {limits:?} {usage:?}\n");
        self.machine.quotas().map(line).collect()
    }

    fn sessions(&self) -> String {
        let mut out = String::new();
        for (id, session) in self.machine.sessions() {
            let ephemerals = session.ephemerals_in_order();
            let (attachment, timeout_ms) = (session.attachment.0, session.timeout_ms);
            writeln!(out, "{id} attachment {attachment} timeout_ms {timeout_ms} ephemerals {ephemerals:?}")
                .unwrap();
        }
        if out.is_empty() { "none".to_owned() } else { out }
    }

    fn read(&self, words: &Words<'_>, who: &[Id]) -> String {
        let path = words.at(1);
        let machine = &self.machine;
        let result = match words.at(0) {
            "exists" => machine.exists(path, who).map(|it| stat(&it)),
            "get" => machine.get_data(path, who).map(|(data, it)| format!("{data:?}\n{}", stat(&it))),
            "ls" => machine.get_children(path, who).map(|(names, it)| format!("{names:?}\n{}", stat(&it))),
            "getacl" => machine
                .get_acl(path, who)
                .map(|(acl, it)| format!("{} aversion {}", acl_text(&acl), it.aversion)),
            "count" => machine.all_children_number(path, who).map(|count| count.to_string()),
            verb => panic!("unknown verb {verb}"),
        };
        result.unwrap_or_else(text::error)
    }
}

/// Writes down every event.
#[derive(Default)]
struct Told(String);

impl EventSink for Told {
    fn changed(&mut self, change: &Change<'_>) {
        let Change { zxid, path, kind, acl, parent_acl, .. } = change;
        write!(self.0, "  {kind:?} {path} at {}", zxid.0).unwrap();
        if *acl != Acl::open() || *parent_acl != Acl::open() {
            write!(self.0, " ({}; parent {})", acl_text(acl), acl_text(parent_acl)).unwrap();
        }
        self.0.push('\n');
    }

    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        writeln!(self.0, "  opened {session} attachment {} timeout_ms {timeout_ms}", attachment.0).unwrap();
    }

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        writeln!(self.0, "  attached {session} attachment {} timeout_ms {timeout_ms}", attachment.0).unwrap();
    }

    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        self.0.push_str(&locks::event(event, context.zxid));
    }

    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        self.0.push_str(&locks::event(event, context.zxid));
        writeln!(self.0, "    {question:?}").unwrap();
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        writeln!(self.0, "  {end:?} {session}").unwrap();
    }
}

fn answer(applied: &Applied) -> String {
    if let Some(Attached { session, attachment, timeout_ms }) = applied.attached {
        return format!("session {session} attachment {} timeout_ms {timeout_ms}", attachment.0);
    }
    text::result(&applied.result)
}
