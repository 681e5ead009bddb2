//! The tools' work. Arguments are checked before (`tools`).

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::JsonObject;
use rowlock_client::report::{Holder, Queue};
use rowlock_client::{Client, Error, Mutex, Owner, ReleaseError};
use rowlock_env::time;
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use super::agent::{Agent, Held};
use super::tools::{EXPIRES_S_DEFAULT, LIMIT_DEFAULT, WAIT_S_DEFAULT};
use super::write;
use crate::moment::{rfc3339, span};
use crate::name::mutex_of;
use crate::print::{count, safe};

/// Most holders and waiters shown of a lock.
const PLACES_MAX: u32 = 20;
/// Longest text of another client, in characters.
const FOREIGN_CHARS_MAX: usize = 300;
/// Longest wait for an answer of the servers.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Result of a call, for a model and for a program.
pub struct CallResult {
    pub text: String,
    pub data: Value,
}

/// Quotes a text that may come from another client: one line without control characters, of bounded length.
pub fn shown(text: &str) -> String {
    let short: String = safe(text.trim()).chars().take(FOREIGN_CHARS_MAX).collect();
    format!("{short:?}")
}

fn plain(text: Option<&str>) -> Value {
    text.map(|text| safe(text.trim()).chars().take(FOREIGN_CHARS_MAX).collect::<String>()).into()
}

/// Explains an error for a reader who knows nothing of ZooKeeper.
fn explained(error: &Error) -> String {
    match error {
        Error::Rejected(ErrorCode::NoAuth) => "you are not allowed to do this with this lock".to_owned(),
        Error::Rejected(ErrorCode::NoNode) => "there is no such lock".to_owned(),
        Error::NoAnswer => {
            "the lock service did not answer in time, and may have done it: check with my_locks".to_owned()
        }
        Error::Deadlock { .. } => {
            format!("{error}. Waiting would never end: release the locks that you hold, then try again")
        }
        error if error.is_session_end() => {
            "the session with the lock service has ended, and with it all locks; try again".to_owned()
        }
        error => error.to_string(),
    }
}

/// Arguments of a call.
struct Arguments<'a>(&'a JsonObject);

impl<'a> Arguments<'a> {
    fn text(&self, name: &str) -> &'a str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }
}

impl Agent {
    /// Runs a tool. Errors are plain text.
    pub async fn call(self: &Arc<Self>, tool: &str, arguments: &JsonObject) -> Result<CallResult, String> {
        let given = Arguments(arguments);
        let client = self.client().await?.operation_timeout(ANSWER_MAX);
        let name = given.text("lock");
        let mutex = mutex_of(&client, name, false);
        if !name.is_empty() {
            mutex.validate().map_err(|e| format!("{}: {}", shown(name), explained(&e)))?;
        }
        let held = || self.held(&mutex.server_path(), name);
        match tool {
            "take_lock" => self.take(&client, &mutex, &given).await,
            "list_locks" if name.is_empty() => {
                list(&client, given.number("limit").unwrap_or(LIMIT_DEFAULT)).await
            }
            "list_locks" => {
                let found = queue(&client, &mutex.server_path(), PLACES_MAX).await?;
                let found = described(&client, &found);
                Ok(CallResult { text: line(&found), data: json!({ "locks": [found], "more": false }) })
            }
            "my_locks" => self.mine(&client).await,
            "ask_holder" => ask(&client, &mutex, &given).await,
            "release_lock" => self.release(&held()?).await,
            "answer_question" => answer(self, &client, &*held()?, given.text("answer")).await,
            "hand_over" => self.hand_over(&client, &held()?).await,
            "write_file" => self.write(&held()?, given.text("path"), given.text("content")).await,
            other => Err(format!("no tool is called {other}")),
        }
    }

    async fn take(
        self: &Arc<Self>,
        client: &Client,
        mutex: &Mutex,
        given: &Arguments<'_>,
    ) -> Result<CallResult, String> {
        let (name, path) = (given.text("lock"), mutex.server_path());
        let _attempt = self.attempt(&path)?;
        let intent = given.text("intent").trim().to_owned();
        let expires = Duration::from_secs(given.number("expires_s").unwrap_or(EXPIRES_S_DEFAULT));
        let wait = Duration::from_secs(given.number("wait_s").unwrap_or(WAIT_S_DEFAULT));
        let mut request = mutex.request().label(format!("{}: {intent}", self.name)).max_hold(expires);
        if given.flag("shared") {
            request = request.shared();
        }
        if client.extensions().await.is_ok_and(|extensions| extensions.has_locks()) {
            request = request.owner(Owner::Session);
        }
        let asked_ms = time::wall_ms();
        let guard = match request.timeout(wait).lock_owned().await {
            Ok(guard) => guard,
            Err(Error::Timeout { .. }) => {
                let found = described(client, &queue(client, &path, PLACES_MAX).await?);
                let advice = "wait longer with wait_s, or call ask_holder";
                return Err(format!("not taken within {} s. {}; {advice}", wait.as_secs(), line(&found)));
            }
            Err(e) => return Err(format!("{} was not taken: {}", shown(name), explained(&e))),
        };
        let waited = guard.wait_stats().waited;
        let held = self.add(Held {
            name: name.to_owned(),
            path,
            intent,
            claim: guard.claim(),
            is_shared: given.flag("shared"),
            // The hold counts from the grant, which is not before the request.
            expires_ms: asked_ms.saturating_add(millis(waited)).saturating_add(millis(expires)),
            loss: guard.loss(),
            questions: guard.asked(),
            guard: tokio::sync::Mutex::new(Some(guard)),
        });
        let (token, until) = (held.claim.token, rfc3339(held.expires_ms));
        let text = format!("You hold {} until {until}, with token {token}", shown(name));
        Ok(CallResult { text, data: held.document() })
    }

    async fn release(&self, held: &Arc<Held>) -> Result<CallResult, String> {
        // Waits for the end of a write.
        let Some(guard) = held.guard.lock().await.take() else {
            return Err(format!("{} is being released by another call", shown(&held.name)));
        };
        let released = guard.release().await;
        match released {
            Ok(()) => {
                self.remove(held);
                let text = format!("Released {}", shown(&held.name));
                Ok(CallResult { text, data: json!({ "lock": held.name, "released": true }) })
            }
            Err(ReleaseError::NotHeld) => {
                let why = held.why_lost();
                self.lose(held, &why);
                Err(format!("{} was lost before this release: {why}", shown(&held.name)))
            }
            Err(e) => {
                self.lose(held, &e.to_string());
                Err(format!("it is unknown whether {} was held until this release: {e}", shown(&held.name)))
            }
        }
    }

    async fn hand_over(&self, client: &Client, held: &Arc<Held>) -> Result<CallResult, String> {
        let before = queue(client, &held.path, PLACES_MAX).await?;
        if before.waiter_count == 0 {
            let advice = "you keep it; use release_lock if you are done";
            return Err(format!("no client waits for {}: {advice}", shown(&held.name)));
        }
        self.release(held).await?;
        let after = described(client, &queue(client, &held.path, PLACES_MAX).await?);
        let text = format!("Handed over {}. {}", shown(&held.name), line(&after));
        Ok(CallResult { text, data: json!({ "lock": held.name, "now": after }) })
    }

    async fn mine(&self, client: &Client) -> Result<CallResult, String> {
        let mut locks = Vec::new();
        let mut text = String::new();
        for held in self.all_held() {
            let mut document = held.document();
            let waiting = queue(client, &held.path, 1).await.map_or(0, |queue| queue.waiter_count);
            document["waiting"] = waiting.into();
            let (until, token) = (rfc3339(held.expires_ms), held.claim.token);
            text.push_str(&format!("{} until {until}, token {token}, {waiting} waiting", shown(&held.name),));
            if let Some(question) = held.questions.newest() {
                let ago_ms = time::wall_ms().saturating_sub(question.asked_ms).max(0);
                document["question"] = json!({
                    "by": plain(Some(&question.by)),
                    "reason": plain(Some(&question.reason)),
                    "asked_ms_ago": ago_ms,
                    "you_lose_it": question.deadline.is_some(),
                });
                let (by, reason) = (shown(&question.by), shown(&question.reason));
                text.push_str(&format!("; {by} asked {} ago: {reason}", span(ago_ms)));
            }
            text.push('\n');
            locks.push(document);
        }
        if locks.is_empty() {
            text.push_str("You hold no lock");
        }
        Ok(CallResult { text: text.trim_end().to_owned(), data: json!({ "locks": locks }) })
    }

    async fn write(&self, held: &Arc<Held>, path: &str, content: &str) -> Result<CallResult, String> {
        let guard = held.guard.lock().await;
        let Some(guard) = &*guard else {
            return Err(format!("{} was released: nothing was written", shown(&held.name)));
        };
        if held.is_shared {
            return Err(format!(
                "you hold {} in shared mode, in which nothing is written",
                shown(&held.name)
            ));
        }
        let file = write::within(&self.root, path)?;
        match guard.check().await {
            Ok(true) => {}
            Ok(false) => {
                let why = held.why_lost();
                self.lose(held, &why);
                return Err(format!("nothing was written: you have lost {}: {why}", shown(&held.name)));
            }
            Err(e) => return Err(format!("nothing was written: {}", explained(&e))),
        }
        write::fenced(&file, held.claim.token.0, content.as_bytes()).await?;
        let text = format!("Wrote {} to {}", count(content.len(), "byte"), file.display());
        let data = json!({
            "path": file.display().to_string(),
            "bytes": content.len(),
            "token": held.claim.token.0.to_string(),
        });
        Ok(CallResult { text, data })
    }
}

impl Held {
    /// Returns the reason of the loss, also before this process has heard of it.
    fn why_lost(&self) -> String {
        self.loss.reason().map_or_else(|| "it was taken away".to_owned(), |why| why.to_string())
    }

    fn document(&self) -> Value {
        json!({
            "lock": self.name,
            "token": self.claim.token.0.to_string(),
            "intent": self.intent,
            "shared": self.is_shared,
            "expires": rfc3339(self.expires_ms),
        })
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Changes the label of the own queue position, which other clients read in the queue.
async fn answer(agent: &Agent, client: &Client, held: &Held, answer: &str) -> Result<CallResult, String> {
    let Some(question) = held.questions.newest() else {
        return Err(format!("no client has asked you for {}", shown(&held.name)));
    };
    let label = format!("{}: {} (answer: {})", agent.name, held.intent, answer.trim());
    let set = client.set(&held.claim.path, Some(label.into_bytes().into()), None).await;
    set.map_err(|e| format!("the answer was not stored: {}", explained(&e)))?;
    let text = format!("{} can read your answer", shown(&question.by));
    Ok(CallResult {
        text,
        data: json!({ "lock": held.name, "to": plain(Some(&question.by)), "answer": answer.trim() }),
    })
}

async fn ask(client: &Client, mutex: &Mutex, given: &Arguments<'_>) -> Result<CallResult, String> {
    let name = given.text("lock");
    let within = given.number("within_s").map(Duration::from_secs);
    let asked = client.ask_holders(mutex.path(), given.text("reason").trim(), within).await;
    let asked = match asked {
        Err(Error::Rejected(ErrorCode::NoNode)) => 0,
        asked => asked.map_err(|e| format!("{} was not asked for: {}", shown(name), explained(&e)))?,
    };
    let text = match asked {
        0 => format!("No client holds {}: call take_lock", shown(name)),
        asked => format!("Asked {} of {}; list_locks shows an answer", count(asked, "holder"), shown(name)),
    };
    Ok(CallResult { text, data: json!({ "lock": name, "asked": asked }) })
}

async fn list(client: &Client, limit: u64) -> Result<CallResult, String> {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let report = client.report_locks(limit).await.map_err(|e| explained(&e))?;
    let mut locks = Vec::new();
    let mut text = String::new();
    for lock in &report.locks {
        // A lock may be gone meanwhile.
        let Ok(found) = queue(client, &lock.path, PLACES_MAX).await else { continue };
        let found = described(client, &found);
        text.push_str(&format!("{}\n", line(&found)));
        locks.push(found);
    }
    if locks.is_empty() {
        text.push_str("No lock is held or waited for");
    }
    if report.more {
        text.push_str("There are more: raise limit, or name a lock");
    }
    Ok(CallResult { text: text.trim_end().to_owned(), data: json!({ "locks": locks, "more": report.more }) })
}

async fn queue(client: &Client, path: &str, limit: u32) -> Result<Queue, String> {
    match client.report_queue(path, limit).await {
        Ok(queue) => Ok(queue),
        // A lock that was never used.
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(Queue {
            zxid: rowlock_client::Zxid(0),
            time_ms: time::wall_ms(),
            lock: path.to_owned(),
            limit: None,
            delayed_until_ms: None,
            holder_count: 0,
            waiter_count: 0,
            holders: Vec::new(),
            waiters: Vec::new(),
            more: false,
        }),
        Err(e) => Err(explained(&e)),
    }
}

/// Returns the queue of a lock as data for an agent.
fn described(client: &Client, queue: &Queue) -> Value {
    let own = client.session_id();
    let holder = |holder: &Holder| {
        json!({
            "who": plain(holder.place.label.as_deref()),
            "you": holder.place.session == Some(own),
            "held_ms": holder.held_ms,
            "token": holder.place.token.map(|token| token.0.to_string()),
        })
    };
    let waiters: Vec<Value> = queue
        .waiters
        .iter()
        .map(|waiter| json!({ "who": plain(waiter.place.label.as_deref()), "waited_ms": waiter.waited_ms }))
        .collect();
    json!({
        "lock": queue.lock.strip_prefix("/locks/").unwrap_or(&queue.lock),
        "holders": queue.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiting": queue.waiter_count,
        "waiters": waiters,
    })
}

/// Formats what [`described`] returned as a line.
fn line(lock: &Value) -> String {
    let name = |who: &Value| shown(who.as_str().unwrap_or("an unnamed client"));
    let holders = lock["holders"].as_array().into_iter().flatten().map(|holder| {
        let you = if holder["you"] == true { "you, " } else { "" };
        let held = holder["held_ms"].as_i64().map_or(String::new(), |ms| format!(" for {}", span(ms)));
        format!("{you}{}{held}", name(&holder["who"]))
    });
    let holders: Vec<String> = holders.collect();
    let held = if holders.is_empty() {
        "is free".to_owned()
    } else {
        format!("is held by {}", holders.join(" and "))
    };
    let waiters: Vec<String> =
        lock["waiters"].as_array().into_iter().flatten().map(|waiter| name(&waiter["who"])).collect();
    let waiting = lock["waiting"].as_u64().unwrap_or(0);
    let waits = if waiters.is_empty() {
        String::new()
    } else {
        format!(", {waiting} waiting: {}", waiters.join(", "))
    };
    format!("{} {held}{waits}", name(&lock["lock"]))
}
