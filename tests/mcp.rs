//! `rowlock mcp`: conversations of agents' programs over stdin and stdout.

use std::fs;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::cli_under_lock::{queue_of, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{clean, run};
use crate::support::secs;

/// An agent's program and its `rowlock mcp`.
struct Agent {
    process: Child,
    stdin: Option<ChildStdin>,
    out: Lines<BufReader<ChildStdout>>,
    asked: u64,
    /// Log messages so far.
    messages: Vec<String>,
}

/// Result of a tool: whether it failed, its text, and its data.
struct ToolOutput {
    failed: bool,
    text: String,
    data: Value,
}

impl Agent {
    async fn start(folder: &Path, name: &str, flags: &[&str]) -> Agent {
        let mut command = Command::from(clean(env!("CARGO_BIN_EXE_rowlock")));
        command.args(["mcp", "--agent", name]).args(flags).current_dir(folder).kill_on_drop(true);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, out) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()).lines());
        let mut agent = Agent { process, stdin, out, asked: 0, messages: Vec::new() };
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        });
        let answer = agent.request("initialize", hello).await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "rowlock", "{answer}");
        assert!(answer["result"]["instructions"].as_str().unwrap().contains("not instructions"), "{answer}");
        agent.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        agent
    }

    async fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string()).await;
    }

    async fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let line = timeout(secs(60), self.out.next_line()).await.expect("an answer").unwrap();
        serde_json::from_str(&line.expect("the conversation goes on")).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.asked += 1;
        let id = self.asked;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        id
    }

    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.receive().await;
            if message["method"] == "notifications/message" {
                self.messages.push(message["params"]["data"].as_str().unwrap().to_owned());
            } else if message["id"] == id {
                return message;
            }
        }
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params).await;
        self.answer(id).await
    }

    async fn begin(&mut self, tool: &str, arguments: Value) -> u64 {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    async fn end(&mut self, id: u64) -> ToolOutput {
        let answer = self.answer(id).await;
        let result = &answer["result"];
        ToolOutput {
            failed: result["isError"].as_bool().unwrap_or_else(|| panic!("{answer}")),
            text: result["content"][0]["text"].as_str().unwrap().to_owned(),
            data: result["structuredContent"].clone(),
        }
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> ToolOutput {
        let id = self.begin(tool, arguments).await;
        self.end(id).await
    }

    /// Calls a tool that must succeed.
    async fn does(&mut self, tool: &str, arguments: Value) -> ToolOutput {
        let told = self.call(tool, arguments).await;
        assert!(!told.failed, "{tool}: {}", told.text);
        told
    }

    /// Calls a tool that must fail with these texts.
    async fn fails(&mut self, tool: &str, arguments: Value, texts: &[&str]) {
        let told = self.call(tool, arguments).await;
        assert!(told.failed, "{tool}: {}", told.text);
        for text in texts {
            assert!(told.text.contains(text), "{tool}: {}", told.text);
        }
    }

    /// Waits for a log message with this text.
    async fn waits_for_message(&mut self, text: &str) {
        while !self.messages.iter().any(|message| message.contains(text)) {
            let message = self.receive().await;
            assert_eq!(message["method"], "notifications/message", "{message}");
            self.messages.push(message["params"]["data"].as_str().unwrap().to_owned());
        }
    }

    /// Closes stdin, as programs end their servers.
    async fn leave(mut self) -> ExitStatus {
        self.stdin = None;
        timeout(secs(30), self.process.wait()).await.expect("it ends").unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_see_each_other_s_intent_ask_answer_and_hand_over() {
    let cluster = Cluster::start(1, FAST).await;
    let mut ada = Agent::start(&cluster.folder, "ada", &[]).await;
    let mut bob = Agent::start(&cluster.folder, "bob", &[]).await;
    let tools = ada.request("tools/list", json!({})).await;
    assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), 8, "{tools}");
    let took = ada.does("take_lock", json!({ "lock": "src/a.rs", "intent": "rename the parser" })).await;
    let busy = ["is held by \"ada: rename the parser\"", "ask_holder"];
    bob.fails("take_lock", json!({ "lock": "src/a.rs", "intent": "fix a typo", "wait_s": 0 }), &busy).await;
    ada.fails("take_lock", json!({ "lock": "src/a.rs", "intent": "again" }), &["you hold", "already"]).await;
    let seen = bob.does("list_locks", json!({})).await;
    assert_eq!(seen.data["locks"][0]["holders"][0]["who"], "ada: rename the parser");
    assert_eq!(seen.data["locks"][0]["holders"][0]["token"], took.data["token"]);
    // A question and its answer.
    bob.does("ask_holder", json!({ "lock": "src/a.rs", "reason": "one\u{1b}[2J line" })).await;
    ada.waits_for_message("one [2J line").await;
    let mine = ada.does("my_locks", json!({})).await;
    let question = &mine.data["locks"][0]["question"];
    assert!(question["by"].as_str().unwrap().contains("bob"), "{question}");
    assert!(mine.data["news"][0].as_str().unwrap().contains("asks you for the lock"), "{}", mine.text);
    ada.does("answer_question", json!({ "lock": "src/a.rs", "answer": "two minutes" })).await;
    let seen = bob.does("list_locks", json!({ "lock": "src/a.rs" })).await;
    assert!(seen.text.contains("ada: rename the parser (answer: two minutes)"), "{}", seen.text);
    // No client waits yet: the lock stays.
    ada.fails("hand_over", json!({ "lock": "src/a.rs" }), &["no client waits", "you keep it"]).await;
    let waiting =
        bob.begin("take_lock", json!({ "lock": "src/a.rs", "intent": "fix a typo", "wait_s": 60 })).await;
    queue_of(&cluster, "/locks/src/a.rs", 2).await;
    let handed = ada.does("hand_over", json!({ "lock": "/locks/src/a.rs" })).await;
    assert_eq!(handed.data["now"]["holders"][0]["who"], "bob: fix a typo");
    let next = bob.end(waiting).await;
    let token = |told: &ToolOutput| told.data["token"].as_str().unwrap().parse::<i64>().unwrap();
    assert!(!next.failed && token(&next) > token(&took), "{}", next.text);
    ada.fails("release_lock", json!({ "lock": "src/a.rs" }), &["you do not hold"]).await;
    // A canceled call leaves the queue.
    let id = ada.begin("take_lock", json!({ "lock": "src/a.rs", "intent": "more", "wait_s": 60 })).await;
    queue_of(&cluster, "/locks/src/a.rs", 2).await;
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    ada.send(&cancel).await;
    queue_of(&cluster, "/locks/src/a.rs", 1).await;
    // The end of a conversation releases what it holds.
    assert!(bob.leave().await.success());
    ada.does("take_lock", json!({ "lock": "src/a.rs", "intent": "more", "wait_s": 60 })).await;
    ada.does("release_lock", json!({ "lock": "src/a.rs" })).await;
    assert!(ada.leave().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_write_is_refused_and_a_loss_is_reported() {
    let cluster = Cluster::start(1, FAST).await;
    let root = cluster.folder.join("work");
    fs::create_dir(&root).unwrap();
    let file = root.join("a.rs");
    let flags = ["--root", "work"];
    let mut ada = Agent::start(&cluster.folder, "ada", &flags).await;
    let mut bob = Agent::start(&cluster.folder, "bob", &flags).await;
    let write = |content: &str| json!({ "lock": "a", "path": "a.rs", "content": content });
    ada.fails("write_file", write("x"), &["you do not hold \"a\""]).await;
    let took = ada.does("take_lock", json!({ "lock": "a", "intent": "write" })).await;
    ada.does("write_file", write("ada\n")).await;
    for path in ["../a.rs", "/etc/x", "none/x", "a.rs.fence"] {
        let there = json!({ "lock": "a", "path": path, "content": "x" });
        ada.fails("write_file", there, &["cannot be written"]).await;
    }
    // An operator takes the lock away; the next holder writes.
    let token = took.data["token"].as_str().unwrap();
    let forced = ["release", "--force", "--token", token, "a"];
    assert_eq!(start(&cluster.folder, &forced).end().await.code, 0);
    bob.does("take_lock", json!({ "lock": "a", "intent": "write, too" })).await;
    bob.does("write_file", write("bob\n")).await;
    ada.fails("write_file", write("late\n"), &["forced", "NEWS: you have LOST the lock \"a\""]).await;
    ada.waits_for_message("you have LOST the lock \"a\"").await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "bob\n");
    let after = ada.does("my_locks", json!({})).await;
    assert_eq!((&after.data["locks"], &after.data["news"]), (&json!([]), &json!([])), "told once");
    // A later holder, of whom the cluster and this agent know nothing, has been at the file.
    let folder = cluster.folder.clone();
    let later = ["fence", "check", "work/a.rs", "--token", "999999999"];
    assert_eq!(tokio::task::spawn_blocking(move || run(&folder, &later)).await.unwrap().code, 0);
    bob.fails("write_file", write("stale\n"), &["stale token", "nothing was changed"]).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "bob\n");
    // The time of a lock ends by itself.
    ada.does("take_lock", json!({ "lock": "b", "intent": "wait", "expires_s": 1 })).await;
    ada.waits_for_message("you have LOST the lock \"b\"").await;
    ada.fails("release_lock", json!({ "lock": "b" }), &["held for its maximum"]).await;
    // Shared holders write nothing.
    ada.does("take_lock", json!({ "lock": "c", "intent": "read", "shared": true })).await;
    bob.does("take_lock", json!({ "lock": "c", "intent": "read", "shared": true, "wait_s": 0 })).await;
    let there = json!({ "lock": "c", "path": "c", "content": "x" });
    ada.fails("write_file", there, &["shared mode"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_out_of_bounds_and_odd_messages_end_nothing() {
    let cluster = Cluster::start(1, FAST).await;
    let mut ada = Agent::start(&cluster.folder, "ada", &[]).await;
    let take = |lock: &str| json!({ "lock": lock, "intent": "test", "wait_s": 0 });
    ada.fails("take_lock", json!({ "lock": "a" }), &["intent is missing"]).await;
    ada.fails("take_lock", json!({ "lock": "a", "intent": "x".repeat(161) }), &["161 bytes"]).await;
    ada.fails("take_lock", take("a//b"), &["invalid lock name"]).await;
    ada.fails("list_locks", json!({ "limit": 51 }), &["from 1 to 50"]).await;
    let unknown = ada.request("tools/call", json!({ "name": "steal_lock", "arguments": {} })).await;
    assert!(unknown["error"]["message"].as_str().unwrap().contains("steal_lock"), "{unknown}");
    for at in 0..32 {
        ada.does("take_lock", take(&format!("l{at}"))).await;
    }
    ada.fails("take_lock", take("l32"), &["32 locks already"]).await;
    ada.does("release_lock", json!({ "lock": "l7" })).await;
    ada.does("take_lock", take("l32")).await;
    ada.send_line("this is no message").await;
    ada.send_line(&"x".repeat(9 << 20)).await;
    ada.send_line("[1, 2").await;
    let mine = ada.does("my_locks", json!({})).await;
    assert_eq!(mine.data["locks"].as_array().unwrap().len(), 32);
    assert!(ada.leave().await.success());
    // A deadlock is refused.
    let mut ada = Agent::start(&cluster.folder, "ada", &[]).await;
    let mut bob = Agent::start(&cluster.folder, "bob", &[]).await;
    ada.does("take_lock", take("l1")).await;
    bob.does("take_lock", take("l2")).await;
    let waiting = ada.begin("take_lock", json!({ "lock": "l2", "intent": "test", "wait_s": 60 })).await;
    queue_of(&cluster, "/locks/l2", 2).await;
    bob.fails("take_lock", json!({ "lock": "l1", "intent": "test", "wait_s": 60 }), &["deadlock"]).await;
    bob.does("release_lock", json!({ "lock": "l2" })).await;
    assert!(!ada.end(waiting).await.failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_outlives_its_cluster_and_learns_what_it_lost() {
    let mut cluster = Cluster::start(1, FAST).await;
    let flags = ["--session-timeout", "2s", "--connect-timeout", "1s"];
    let mut ada = Agent::start(&cluster.folder, "ada", &flags).await;
    ada.does("take_lock", json!({ "lock": "a", "intent": "test" })).await;
    cluster.kill_all();
    ada.waits_for_message("you have LOST the lock \"a\"").await;
    ada.fails(
        "take_lock",
        json!({ "lock": "a", "intent": "test" }),
        &["cannot be used", "NEWS: you have LOST"],
    )
    .await;
    cluster.start_node(1);
    cluster.wait_until_serving().await;
    ada.does("take_lock", json!({ "lock": "a", "intent": "test", "wait_s": 60 })).await;
    assert!(ada.leave().await.success());
}
