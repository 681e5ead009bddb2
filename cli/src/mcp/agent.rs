//! Session, held locks and news of one agent. A task per held lock waits for its loss and for questions.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
#[expect(deprecated, reason = "most programs show log messages, and have no other notification")]
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam};
use rmcp::service::{Peer, RoleServer};
use rowlock_client::{Claim, Client, Guard, Loss, LostReason, Questions};
use rowlock_env::task;
use serde_json::json;

use super::calls::shown;
use crate::cluster::{Cluster, leave, open};

/// Most locks that an agent holds or waits for at a time.
pub const LOCKS_MAX: usize = 32;
/// Most news kept for the next answer; the oldest are dropped.
const NEWS_MAX: usize = 64;
/// Most lost locks remembered, for an answer to a late call.
const LOST_MAX: usize = 64;

pub struct Agent {
    pub name: String,
    /// Folder of write_file, canonical.
    pub root: PathBuf,
    cluster: Cluster,
    session: tokio::sync::Mutex<Option<Client>>,
    state: Mutex<AgentState>,
}

#[derive(Default)]
struct AgentState {
    /// Held locks by the path of the lock's znode.
    held: BTreeMap<String, Arc<Held>>,
    attempts: usize,
    /// Path of a lost lock, and why it was lost.
    lost: VecDeque<(String, String)>,
    news: VecDeque<String>,
    peer: Option<Peer<RoleServer>>,
    /// Rank of the least important message that the program wants.
    level: u8,
}

/// Lock that the agent holds.
pub struct Held {
    /// Name as given by the agent.
    pub name: String,
    /// Path of the lock's znode on the server.
    pub path: String,
    pub intent: String,
    pub claim: Claim,
    pub is_shared: bool,
    /// End of the hold, by this machine's clock.
    pub expires_ms: i64,
    pub loss: Loss,
    pub questions: Questions,
    /// The hold itself. Locked during a write, so that a release waits for the end of the write; `None` after
    /// the release.
    pub guard: tokio::sync::Mutex<Option<Guard>>,
}

/// Reserved room for an attempt. Dropping it gives the room back.
pub struct Attempt<'a>(&'a Agent);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.state.lock().attempts -= 1;
    }
}

impl Agent {
    pub fn new(name: String, root: PathBuf, cluster: Cluster) -> Agent {
        let (session, state) = (tokio::sync::Mutex::default(), Mutex::default());
        Agent { name, root, cluster, session, state }
    }

    /// Returns the session, or opens one at the first call and after a loss.
    pub async fn client(&self) -> Result<Client, String> {
        let mut session = self.session.lock().await;
        if let Some(client) = &*session
            && !client.state().is_final()
        {
            return Ok(client.clone());
        }
        // An agent is no superuser unless its user names a credential.
        let builder = self.cluster.client_without_superuser().map_err(|e| e.message)?.label(&self.name);
        let client = open(builder).await.map_err(|e| format!("the lock service cannot be used: {e}"))?;
        *session = Some(client.clone());
        Ok(client)
    }

    /// Closes the session, which releases all locks.
    pub async fn leave(&self) {
        if let Some(client) = self.session.lock().await.take() {
            leave(&client).await;
        }
    }

    /// Sends messages to this program from now on.
    pub fn set_peer(&self, peer: Peer<RoleServer>) {
        self.state.lock().peer = Some(peer);
    }

    #[expect(deprecated, reason = "see above")]
    pub fn set_level(&self, level: LoggingLevel) {
        self.state.lock().level = rank(level);
    }

    /// Reserves room for a lock, and refuses one that is held already.
    pub fn attempt(&self, path: &str) -> Result<Attempt<'_>, String> {
        let mut state = self.state.lock();
        if let Some(held) = state.held.get(path).filter(|held| held.loss.reason().is_none()) {
            return Err(format!("you hold {} already, with token {}", shown(&held.name), held.claim.token));
        }
        if state.held.len() + state.attempts >= LOCKS_MAX {
            return Err(format!("you hold or wait for {LOCKS_MAX} locks already; release one first"));
        }
        state.attempts += 1;
        Ok(Attempt(self))
    }

    pub fn add(self: &Arc<Self>, held: Held) -> Arc<Held> {
        let held = Arc::new(held);
        self.state.lock().held.insert(held.path.clone(), held.clone());
        // Not awaited: the task ends with the hold.
        drop(task::spawn("rowlock-mcp-watch", watch(self.clone(), held.clone())));
        held
    }

    /// Returns a lock that the agent holds, or why it does not.
    pub fn held(&self, path: &str, name: &str) -> Result<Arc<Held>, String> {
        self.record_losses();
        let state = self.state.lock();
        if let Some(held) = state.held.get(path) {
            return Ok(held.clone());
        }
        let name = shown(name);
        match state.lost.iter().rev().find(|(lost, _)| lost == path) {
            Some((_, why)) => {
                Err(format!("you do not hold {name} any more: {why}; take it again before you go on"))
            }
            None => Err(format!("you do not hold {name}")),
        }
    }

    pub fn all_held(&self) -> Vec<Arc<Held>> {
        self.record_losses();
        self.state.lock().held.values().cloned().collect()
    }

    /// Forgets a lock after its release.
    pub fn remove(&self, held: &Arc<Held>) {
        let mut state = self.state.lock();
        if state.held.get(&held.path).is_some_and(|known| Arc::ptr_eq(known, held)) {
            state.held.remove(&held.path);
        }
    }

    /// Records a loss once: for late calls, for the next answer, and as a message at once.
    pub fn lose(&self, held: &Arc<Held>, why: &str) {
        let news = {
            let mut state = self.state.lock();
            if !state.held.get(&held.path).is_some_and(|known| Arc::ptr_eq(known, held)) {
                return;
            }
            state.held.remove(&held.path);
            if state.lost.len() >= LOST_MAX {
                state.lost.pop_front();
            }
            state.lost.push_back((held.path.clone(), why.to_owned()));
            format!(
                "you have LOST the lock {} (token {}): {why}. Stop changing what it stands for",
                shown(&held.name),
                held.claim.token
            )
        };
        self.report(&news, true);
    }

    /// Records the losses that the watching tasks have had no time for.
    fn record_losses(&self) {
        let held: Vec<Arc<Held>> = self.state.lock().held.values().cloned().collect();
        for held in held {
            if let Some(reason) = held.loss.reason().filter(|reason| *reason != LostReason::Released) {
                self.lose(&held, &reason.to_string());
            }
        }
    }

    /// Takes what has happened since the last answer.
    pub fn take_news(&self) -> Vec<String> {
        self.record_losses();
        self.state.lock().news.drain(..).collect()
    }

    fn report(&self, text: &str, is_loss: bool) {
        let mut state = self.state.lock();
        if state.news.len() >= NEWS_MAX {
            state.news.pop_front();
        }
        state.news.push_back(text.to_owned());
        #[expect(deprecated, reason = "see above")]
        let level = if is_loss { LoggingLevel::Error } else { LoggingLevel::Warning };
        let Some(peer) = state.peer.clone().filter(|_| rank(level) >= state.level) else { return };
        #[expect(deprecated, reason = "see above")]
        let message = LoggingMessageNotificationParam::new(level, json!(text)).with_logger("rowlock");
        // Not awaited, and an error means that the program is gone.
        drop(task::spawn("rowlock-mcp-message", async move {
            #[expect(deprecated, reason = "see above")]
            let _ = peer.notify_logging_message(message).await;
        }));
    }
}

#[expect(deprecated, reason = "see above")]
fn rank(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}

/// Reports questions and the loss of a lock, until the hold ends.
async fn watch(agent: Arc<Agent>, held: Arc<Held>) {
    let mut questions = held.questions.clone();
    while let Some(question) = questions.next().await {
        let (by, reason) = (shown(&question.by), shown(&question.reason));
        let left = question.deadline.map_or(String::new(), |deadline| {
            let left = deadline.saturating_since(rowlock_env::time::now());
            format!("; you lose it in {} s", left.as_secs())
        });
        let name = shown(&held.name);
        agent.report(
            &format!("{by} asks you for the lock {name}: {reason}{left}. Use answer_question or hand_over"),
            false,
        );
    }
    match held.loss.wait().await {
        LostReason::Released => {}
        reason => agent.lose(&held, &reason.to_string()),
    }
}
