//! Restarts session timers on the leader, and waits for the quorum's acknowledgement that it still leads.
//!
//! Invariant: a touch is confirmed only after a quorum has acknowledged a request which this leader sent, in
//! the same term, after the timer was restarted. A later leader was therefore elected after the restart and
//! gives the full timeout from then on: a client that computes a deadline from the send time of a confirmed
//! heartbeat gives up before any leader, old or new, expires the session. No lease, and no clock except the
//! rate of the expiring leader's takes part (docs/decisions/heartbeats.md).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::raft::{QuorumContact, Raft, facts};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use rowlock_types::client_disconnect::ClientDisconnect;
use rowlock_types::node_hook::Hook;

use super::expiry_table::ExpiryTable;
use super::last_contact::LastContact;

/// A heartbeat to the quorum is not sent before this: under load the answers to the next log entry come
/// first.
const ASK_AFTER: Duration = Duration::from_millis(5);
/// A heartbeat for those who wait is sent at most this often.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// A report of no session is answered if the contact to a quorum is at most this old.
const CONTACT_FRESH: Duration = Duration::from_millis(100);

/// Why a touch is not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unconfirmed {
    /// This node does not lead that term (any more).
    NotLeader,
    /// No quorum has acknowledged this leader in time.
    NoQuorum,
}

/// Confirms touches for this node's connections and for the other nodes.
pub struct HeartbeatAcks {
    raft: Raft,
    quorum: QuorumContact,
    expiry_table: Arc<ExpiryTable>,
    contact: Arc<LastContact>,
    hook: Hook,
    asked: Mutex<Option<Instant>>,
}

impl HeartbeatAcks {
    /// `contact` is the leader's own.
    pub fn new(
        raft: Raft,
        quorum: QuorumContact,
        expiry_table: Arc<ExpiryTable>,
        contact: Arc<LastContact>,
        hook: Hook,
    ) -> Self {
        HeartbeatAcks { raft, quorum, expiry_table, contact, hook, asked: Mutex::new(None) }
    }

    /// Restarts the timers of `sessions`, at the first poll, and waits for at most `patience` until a quorum
    /// has acknowledged this leader after that. Gives the sessions whose timers do not run, neither then nor
    /// now.
    ///
    /// # Errors
    /// [`Unconfirmed`]: the session must not be confirmed; timers may have been restarted.
    /// # Cancel safety
    /// Timers may have been restarted, which does no harm.
    pub async fn touch(
        &self,
        term: u64,
        sessions: Vec<SessionId>,
        patience: Duration,
    ) -> Result<Vec<SessionId>, Unconfirmed> {
        let touched = time::now();
        // A report of no session only asks for contact, and need not wait for the next heartbeat.
        let age = if sessions.is_empty() { CONTACT_FRESH } else { Duration::ZERO };
        if !self.expiry_table.touch(term, &sessions) {
            return Err(Unconfirmed::NotLeader);
        }
        let mut heard = self.quorum.heard();
        let contact = loop {
            if let Some(at) = self.acknowledged_since(touched, age, term) {
                break at;
            }
            let waited = touched.elapsed();
            if waited >= patience {
                return Err(Unconfirmed::NoQuorum);
            }
            if !sessions.is_empty() && waited >= ASK_AFTER {
                self.ask_quorum().await;
            }
            let wake_at =
                touched + if waited < ASK_AFTER { ASK_AFTER } else { waited + ASK_EVERY }.min(patience);
            // No answer by then: look again, since the node may lead no more.
            let _ = time::timeout_at(wake_at, heard.changed()).await;
            if self.expiry_table.term() != Some(term) {
                return Err(Unconfirmed::NotLeader);
            }
        };
        let stopped = self.expiry_table.stopped(term, &sessions).ok_or(Unconfirmed::NotLeader)?;
        self.hook.tell(|hook| {
            let running: Vec<_> = sessions.into_iter().filter(|it| !stopped.contains(it)).collect();
            hook.confirms(term, contact.elapsed(), touched.elapsed(), &running);
        });
        Ok(stopped)
    }

    /// Records at once that these clients have disconnected. False if this node does not lead `term`.
    pub fn client_disconnected(&self, term: u64, disconnects: &[ClientDisconnect]) -> bool {
        self.expiry_table.client_disconnected(term, disconnects)
    }

    /// When a quorum last acknowledged this leader of `term`, unless that was over `age` before `moment`.
    fn acknowledged_since(&self, moment: Instant, age: Duration, term: u64) -> Option<Instant> {
        let (leads, at) = self.quorum.last()?;
        self.contact.mark(at);
        let is_recent = at + age >= moment || mutant::is(Mutant::ServeWithoutQuorum);
        (leads == term && is_recent).then_some(at)
    }

    async fn ask_quorum(&self) {
        let is_time = {
            let mut asked = self.asked.lock();
            let is_time = asked.is_none_or(|at| at.elapsed() >= ASK_EVERY);
            if is_time {
                *asked = Some(time::now());
            }
            is_time
        };
        if is_time {
            facts::ask_quorum(&self.raft).await;
        }
    }
}
