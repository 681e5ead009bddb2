//! Conversations of clients with a node, as text in `testdata/zk`.
//!
//! A case begins with a node; `node SETTING=VALUE ...` as its first line sets `read_only`, `require_auth`,
//! `reconfig` (0 or 1), `words=LIST`, `max_connections=N`, `min_timeout=MS`.
//!
//! | line | |
//! |---|---|
//! | `connect NAME [as=OTHER] [timeout=MS] [seen=ZXID] [ro=0,1,none]` | opens or resumes (`as`) a session |
//! | `... [session=N] [password=WORD]` | the same with another number or password |
//! | `NAME REQUEST` | sends the request; prints every frame up to the reply |
//! | `send NAME REQUEST` | only sends |
//! | `raw NAME HEX [reply=XID:OPCODE]` | sends bytes; `reply` announces the reply's type |
//! | `next NAME [COUNT]` | prints the next frames |
//! | `hangup NAME` | closes the client's socket |
//! | `bytes HEX` | connects and sends; prints the received bytes up to the end |
//! | `word WORD` | the same for a four-letter word |
//! | `log runs,stands,loses,expires` | the fate of the following writes |
//! | `leader away,back` | the leader confirms keepalives, or does not |
//! | `serve off,on` | the node loses its quorum, or has it again |
//! | `late NAME` | applies an attach of the session that was sent from another node before its latest one |
//! | `counts` | frames sent, changes, notices and watches fired since the last such line |
//! | `overflowed` | connections closed at a bound |
//!
//! Requests: [`rowlock_frames::script`].

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rowlock_env::time;
use rowlock_frames::{script, text};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::{OpCode, SessionId, Xid, Zxid};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command};
use rowlock_stories::Words;
use tokio::io::AsyncWriteExt;

use super::client::{Client, Frame, connect_request, raw, rest};
use super::node::{Log, Node, config};
use super::words::send_word;
use crate::limits;
use crate::node::delivery::outbox::{self, Message};
use crate::node::proposer::Submission;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/zk")
}

fn play(name: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut stage: Option<Stage> = None;
    let played = rowlock_stories::play(&testdata().join(format!("{name}.txt")), |line| {
        runtime.block_on(async {
            let words = Words::new(line);
            if line.starts_with("== ") {
                if let Some(ended) = stage.take() {
                    ended.node.stop().await;
                }
                return String::new();
            }
            let settings = if words.at(0) == "node" { Some(&words) } else { None };
            if stage.is_none() {
                stage = Some(Stage::new(settings).await);
            }
            let stage = stage.as_mut().expect("a stage");
            if settings.is_some() { "ready".to_owned() } else { stage.run(&words, line).await }
        })
    });
    played.unwrap_or_else(|difference| panic!("{difference}"));
    if let Some(ended) = stage {
        runtime.block_on(ended.node.stop());
    }
}

struct Stage {
    node: Node,
    clients: BTreeMap<String, Client>,
    counted: [u64; 4],
}

impl Stage {
    async fn new(settings: Option<&Words<'_>>) -> Stage {
        let mut config = config();
        if let Some(words) = settings {
            let client = &mut config.client;
            client.read_only_mode = words.number("read_only", 0) == 1;
            client.require_auth = words.number("require_auth", 0) == 1;
            client.reconfig = words.number("reconfig", 1) == 1;
            client.max_connections = words.number("max_connections", client.max_connections);
            if let Some(list) = words.option("words") {
                client.words = list.split(',').map(str::to_owned).collect();
            }
            config.session.min_timeout_ms = words.number("min_timeout", config.session.min_timeout_ms);
        }
        let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
        Stage { node, clients: BTreeMap::new(), counted: [0; 4] }
    }

    async fn run(&mut self, words: &Words<'_>, line: &str) -> String {
        match words.at(0) {
            "connect" => return self.connect(words).await,
            "send" => {
                let request = rest_of(line, 2);
                let xid = self.client(words.at(1)).send(script::request(&Words::new(request), request)).await;
                return format!("request {xid}");
            }
            "raw" => {
                let reply =
                    words.option("reply").and_then(|reply| reply.split_once(':')).map(|(xid, code)| {
                        let opcode =
                            OpCode::from_i32(code.parse().expect("an opcode")).expect("a known opcode");
                        (Xid(xid.parse().expect("an xid")), opcode)
                    });
                self.client(words.at(1)).send_raw(&hex(words.at(2)), reply).await;
            }
            "next" => {
                let mut frames = Vec::new();
                for _ in 0..words.find(2).map_or(1, rowlock_stories::parse) {
                    frames.push(text::frame(&self.client(words.at(1)).next().await));
                }
                return frames.join("\n");
            }
            "hangup" => drop(self.clients.remove(words.at(1))),
            "bytes" => {
                let mut stream = raw(&self.node).await;
                stream.write_all(&hex(words.at(1))).await.expect("sent");
                return format!("{:?}", Bytes::from(rest(&mut stream).await));
            }
            "word" => return send_word(&self.node, words.at(1)).await,
            "log" => self.node.log(match words.at(1) {
                "runs" => Log::Runs,
                "stands" => Log::Stands,
                "loses" => Log::Loses,
                "expires" => Log::Expires,
                other => panic!("log {other}"),
            }),
            "leader" => self.node.leader_in_contact.send(words.at(1) == "back"),
            "serve" if words.at(1) == "on" => self.node.serve_again(),
            "serve" => self.node.stop_serving(),
            "late" => return self.late(words.at(1)).await,
            "counts" => return self.counts(),
            "overflowed" => return self.node.context.metrics.connections_overflowed_total.get().to_string(),
            name => {
                let request = rest_of(line, 1);
                let client = self.clients.get_mut(name).unwrap_or_else(|| panic!("no client {name}"));
                let xid = client.send(script::request(&Words::new(request), request)).await;
                return frames_until(client, xid).await;
            }
        }
        "ok".to_owned()
    }

    fn client(&mut self, name: &str) -> &mut Client {
        self.clients.get_mut(name).unwrap_or_else(|| panic!("no client {name}"))
    }

    async fn connect(&mut self, words: &Words<'_>) -> String {
        let of = words.option("as").map(|of| self.client(of).opened.clone());
        let resumed = connect_request(of.as_ref());
        let request = ConnectRequest {
            session_id: words
                .option("session")
                .map_or(resumed.session_id, |_| SessionId(words.number("session", 0))),
            password: words
                .option("password")
                .map_or(resumed.password, |word| Bytes::copy_from_slice(word.as_bytes())),
            timeout_ms: words.number("timeout", resumed.timeout_ms),
            last_zxid_seen: Zxid(words.number("seen", 0)),
            read_only: match words.option("ro") {
                Some("none") => None,
                ro => Some(ro == Some("1")),
            },
            ..resumed
        };
        let Some(client) = Client::open(&self.node, request).await else { return "closed".to_owned() };
        let opened = &client.opened;
        let mode = match opened.read_only {
            None => "",
            Some(true) => " read-only",
            Some(false) => " read-write",
        };
        let password = if opened.password.iter().all(|byte| *byte == 0) { " no password" } else { "" };
        // A node without a quorum opens sessions of its own, with random numbers above all of the cluster's.
        let session =
            if opened.session_id.0 < 0 { "local".to_owned() } else { opened.session_id.to_string() };
        let text = format!("session {session} timeout {}{mode}{password}", opened.timeout_ms);
        self.clients.insert(words.at(1).to_owned(), client);
        text
    }

    /// Submits an attach that names the session's first attachment, as a node that lags does.
    async fn late(&mut self, name: &str) -> String {
        let opened = self.client(name).opened.clone();
        let (session, proof) = (opened.session_id, Proof::of(&opened.password));
        let command = Command::Reattach { from: Some(Attachment(1)), session, proof, timeout_ms: 10_000 };
        let (reply_to, mut answer) = outbox::channel();
        let (session, attachment, identities) = (SessionId::NONE, Attachment::default(), Default::default());
        let submission =
            Submission { session, attachment, identities, command, reply_to, tag: 0, received: time::now() };
        assert!(self.node.context.proposer.submit(submission).await.is_ok());
        answer.ready().await;
        let mut messages = VecDeque::new();
        answer.take(&mut messages).expect("within bounds");
        let Some(Message::Applied { answer, .. }) = messages.pop_front() else { panic!("{messages:?}") };
        text::result(&answer.applied.result)
    }

    fn counts(&mut self) -> String {
        let metrics = &self.node.context.metrics;
        let now = [
            metrics.packets_sent_total.get(),
            self.node.context.replica.state.read().last_zxid().0.unsigned_abs(),
            metrics.lock_notices_total.get(),
            metrics.watch_fired_total.get(),
        ];
        let before = std::mem::replace(&mut self.counted, now);
        let [frames, changes, notices, watches] = std::array::from_fn(|at| now[at] - before[at]);
        format!("frames {frames} changes {changes} notices {notices} watches {watches}")
    }
}

async fn frames_until(client: &mut Client, xid: Xid) -> String {
    let mut frames = Vec::new();
    loop {
        let frame = client.next().await;
        frames.push(text::frame(&frame));
        let is_last =
            matches!(&frame, Frame::Closed) || matches!(&frame, Frame::Reply(header, _) if header.xid == xid);
        if is_last {
            return frames.join("\n");
        }
    }
}

/// Returns the line behind its first `words` words.
fn rest_of(line: &str, words: usize) -> &str {
    line.splitn(words + 1, ' ').nth(words).unwrap_or_else(|| panic!("a request is missing in {line:?}"))
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|digit| *digit != b'_').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

rowlock_stories::stories! {
    play, testdata();
    handshake
    locks
    read_only
    requests
    rights
    watches
}
