//! Commit notifications to a follower. A follower without clients learns of commits with the next entries, or
//! after a short delay.
//!
//! A leader notifies its followers of a commit at once, so that their clients get answers, events and grants.
//! A follower without clients can wait for the next entry, which carries the same commit index. Each answer
//! of a follower says whether clients are connected (`RaftResponse::AppendQuiet`). An outdated answer delays
//! a new client's reply by the flush and answer of the client's own entry, and never by more than
//! `pacing::COMMIT_NOTIFY_DELAY_MAX`.

use std::future::pending;
use std::pin::Pin;

use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::time::{self, Sleep};

use crate::pacing::COMMIT_NOTIFY_DELAY_MAX;
use crate::raft_types::LogId;
use crate::raft_types::messages::{AppendRequest, ClientPresence};

/// Notifications of one stream to a follower.
#[derive(Default)]
pub struct CommitNotify {
    clients: ClientPresence,
    /// The last entry that was sent.
    sent: Option<LogId>,
    held: Option<AppendRequest>,
    /// Set when a request is held back. An obsolete timer stays, so that fewer timers are set.
    timer: Option<Pin<Box<Sleep>>>,
}

impl CommitNotify {
    /// Records from the follower's latest answer whether clients are connected.
    pub fn set_clients(&mut self, clients: ClientPresence) {
        let is_late = choice::taken(Choice::CommitToldLate, 10);
        self.clients = if is_late { ClientPresence::Absent } else { clients };
    }

    /// Returns `request` if the request must be sent now; the request covers all those held back before.
    /// `None`: the request is held back.
    pub fn pass(&mut self, request: AppendRequest) -> Option<AppendRequest> {
        let only_tells =
            request.entries.is_empty() && self.sent.is_some() && request.prev_log_id == self.sent;
        if decides!("commit-notice-may-wait", only_tells && self.clients == ClientPresence::Absent) {
            assert!(request.entries.is_empty(), "entries are never held back");
            self.held = Some(request);
            return None;
        }
        self.held = None;
        self.sent = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        Some(request)
    }

    /// Removes the request that is held back, when no later request will cover the same commit.
    pub fn take_held(&mut self) -> Option<AppendRequest> {
        self.held.take()
    }

    /// Waits until the held-back request must be sent; for ever while there is none. Cancel safe.
    pub async fn due(&mut self) -> AppendRequest {
        if self.held.is_some() && self.clients == ClientPresence::Absent {
            self.timer.get_or_insert_with(|| Box::pin(time::sleep(COMMIT_NOTIFY_DELAY_MAX))).await;
            self.timer = None;
        }
        match self.held.take() {
            Some(held) => held,
            None => pending().await,
        }
    }
}
