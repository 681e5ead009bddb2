//! Tells a follower what is committed. A follower without clients is told with the next entries, or after a
//! short delay.
//!
//! A leader tells its followers of a commit at once, so that their clients get answers, events and grants. A
//! follower without clients does not need it at once, and the next entry says the same. Each answer of a
//! follower says whether it has clients (`RaftResponse::AppendQuiet`). That may be out of date: then a client
//! waits for as long as the follower takes to flush and answer the entry that it waits for, and never longer
//! than `pacing::COMMIT_NOTIFY_DELAY_MAX`.

use std::future::pending;
use std::pin::Pin;

use rowlock_env::choice::{self, Choice};
use rowlock_env::time::{self, Sleep};
use rowlock_types::pacing::COMMIT_NOTIFY_DELAY_MAX;

use crate::raft_types::LogId;
use crate::raft_types::messages::{AppendRequest, ClientPresence};

/// The notifications of one stream to a follower.
#[derive(Default)]
pub struct CommitNotify {
    clients: ClientPresence,
    /// The last entry that was sent.
    sent: Option<LogId>,
    held: Option<AppendRequest>,
    /// Set when a request is held back. A timer that is not needed any more stays, so that fewer are set.
    timer: Option<Pin<Box<Sleep>>>,
}

impl CommitNotify {
    /// Whether the follower has clients, by its latest answer.
    pub fn set_clients(&mut self, clients: ClientPresence) {
        let is_late = choice::taken(Choice::CommitToldLate, 10);
        self.clients = if is_late { ClientPresence::Absent } else { clients };
    }

    /// Returns `request` if it must be sent now; it says all that was held back before. `None`: it is held
    /// back.
    pub fn pass(&mut self, request: AppendRequest) -> Option<AppendRequest> {
        let only_tells =
            request.entries.is_empty() && self.sent.is_some() && request.prev_log_id == self.sent;
        if only_tells && self.clients == ClientPresence::Absent {
            assert!(request.entries.is_empty(), "entries are never held back");
            self.held = Some(request);
            return None;
        }
        self.held = None;
        self.sent = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        Some(request)
    }

    /// The request that is held back, if there is one: no request follows that would say the same.
    pub fn take_held(&mut self) -> Option<AppendRequest> {
        self.held.take()
    }

    /// Waits until the request that is held back must be sent; for ever while there is none. Cancel safe.
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
